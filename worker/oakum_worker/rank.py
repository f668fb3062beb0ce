"""One rank process: warms up, then trains through one generation after another.

    python -m oakum_worker.rank CONFIG_FILE LOCAL_RANK NEWS_DESCRIPTOR

The main thread trains. A second thread reads the agent's commands, keeps the newest in the mailbox and cuts the
process group when its generation is over. Losing the agent ends the process, whatever the main thread does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from oakum_worker.channel import Command, NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.errors import CheckpointError, GroupError, TaskError
from oakum_worker.group import GenerationGroup
from oakum_worker.membership import Mailbox, next_generation
from oakum_worker.protocol import Failure, FragmentConfig, Generation, Phase, Switch
from oakum_worker.reporter import ProgressReporter
from oakum_worker.task import load_task
from oakum_worker.trainer import TrainingLoop

_NO_STATE = -1


class RankProcess:
    """The main thread of a rank."""

    def __init__(
        self,
        config: FragmentConfig,
        local_rank: int,
        news: NewsWriter,
        mailbox: Mailbox,
        group: GenerationGroup,
        loop: TrainingLoop,
    ) -> None:
        self._config = config
        self._local_rank = local_rank
        self._news = news
        self._mailbox = mailbox
        self._group = group
        self._loop = loop
        self._checkpoints = DurableCheckpoints(Path(config.checkpoint_dir), keep=config.spec.checkpoint.keep)
        self._reporter = ProgressReporter(news, loop)
        self._formed = 0
        self._entered = 0
        self._rank = -1
        self._has_state = False
        self._agreed = 0
        self._step_ended_s: float | None = None

    def run(self) -> None:
        """Train in one generation after the other until there is nothing left to do here."""
        self._news.send(phase=Phase.READY, endpoint=self._group.endpoint)
        threading.Thread(target=self._checkpoints.prepare, daemon=True, name="imports").start()
        while (generation := self._next_generation()) is not None:
            first = generation.first_rank(self._config.fragment)
            if first is None:
                self._close(generation)
                break
            try:
                if self._train_in(generation, first + self._local_rank):
                    return
            except GroupError as error:
                print(f"generation {generation.number} broke: {str(error).splitlines()[0]}", flush=True)
                if self._entered == generation.number or not self._mailbox.pending(generation.number):
                    self._news.send(phase=Phase.BROKEN, broken=generation.number)
                # Else it was given up for a newer one before it stood, and the one before it is not to be cut.
            self._group.leave()
        self._news.send(phase=Phase.LEFT)

    def _next_generation(self) -> Generation | None:
        """The generation to train in next; None when the agent wants the rank to leave."""
        generation = next_generation(
            self._mailbox,
            self._config.fragment,
            self._formed,
            at_least=self._agreed,
            member=self._formed > 0,
        )
        if self._mailbox.closing:
            self._save_last_words(lead=self._mailbox.saving)
            return None
        return generation

    def _train_in(self, generation: Generation, rank: int) -> bool:
        """Train as `rank` of the generation until the next one is agreed on; True when the trainer is done.

        Raises `GroupError` when the generation breaks; every finished step is then still in the loop.
        """
        self._formed, self._rank = generation.number, rank
        group = self._group.form(generation, rank)
        self._entered = generation.number
        self._loop.join(group, rank, generation.world_size)
        source = self._synchronise(generation.world_size)
        self._news.send(phase=Phase.TRAINING, generation=generation.number)
        self._reporter.enter(generation, self._checkpoints)
        first_step = True
        while not self._loop.finished:
            pending = self._mailbox.pending(generation.number) if rank == 0 else 0
            result = self._loop.step(pending)
            if rank == 0:
                self._after_step(result.loss, result.samples)
            if first_step:
                self._report_switch(generation, source)
                first_step = False
            self._step_ended_s = time.monotonic()
            if result.signal:
                self._agreed = result.signal
                return False
            if self._mailbox.closing:
                return False
        self._finish(rank)
        return True

    def _synchronise(self, world_size: int) -> str:
        """Bring every rank of the generation to the highest finished step that any of them has.

        Without any, rank 0 loads the newest durable checkpoint. Returns where the state came from.
        """
        steps = self._gather_steps(world_size)
        best = max(steps)
        source = "survivor"
        if best == _NO_STATE:
            source = self._cold_start() if self._rank == 0 else "checkpoint"
        if world_size > 1 and min(steps) < max(best, 0):
            # Half-received state is no state: it must not be taken for a survivor's if this breaks.
            self._has_state = steps[self._rank] == best and best != _NO_STATE
            self._loop.share_state(source=steps.index(best))
        self._has_state = True
        return source

    def _gather_steps(self, world_size: int) -> list[int]:
        mine = torch.tensor([self._loop.step_count if self._has_state else _NO_STATE])
        if world_size == 1:
            return [int(mine)]
        steps = [torch.empty_like(mine) for _ in range(world_size)]
        try:
            dist.all_gather(steps, mine)
        except RuntimeError as error:
            raise GroupError(f"a rank was lost while the generation began: {error}") from error
        return [int(step) for step in steps]

    def _cold_start(self) -> str:
        newest = self._checkpoints.newest()
        for warning in self._checkpoints.skipped:
            self._news.send(warning=warning)
        if newest is None:
            return "scratch"
        state = self._loop.state_dict()
        self._checkpoints.load(newest, state)
        self._loop.load_state_dict(state)
        return "checkpoint"

    def _report_switch(self, generation: Generation, source: str) -> None:
        if self._rank != 0:
            return
        stall_s = None if self._step_ended_s is None else time.monotonic() - self._step_ended_s
        switch = Switch(
            generation=generation.number, step=self._loop.step_count - 1, stall_s=stall_s, source=source
        )
        self._news.send(switch=switch)

    def _after_step(self, loss: float, samples: int) -> None:
        self._reporter.step(loss, samples)
        if self._loop.evaluation_due:
            self._reporter.metrics = self._loop.evaluate()
        if self._reporter.checkpoint_due(self._config.spec.checkpoint.every_s):
            self._checkpoint(background=True)

    def _checkpoint(self, *, background: bool) -> None:
        """Write a durable checkpoint; a full or read-only disk is reported and training goes on."""
        state, step = self._loop.state_dict(), self._loop.step_count
        try:
            if background:
                self._checkpoints.save_in_background(state, step)
            else:
                self._checkpoints.wait()
                self._checkpoints.save(state, step)
        except CheckpointError as error:
            self._news.send(warning=str(error))
        self._reporter.checkpoint_started()

    def _finish(self, rank: int) -> None:
        """Rank 0 evaluates and makes the end durable; the others stay until it has, able to do it instead."""
        if rank == 0:
            self._reporter.metrics = self._loop.evaluate()
            self._checkpoint(background=False)
        if dist.is_initialized():
            try:
                dist.barrier()
            except RuntimeError as error:
                raise GroupError(f"a rank was lost while the trainer finished: {error}") from error
        if rank == 0:
            self._reporter.flush(final=True)
        self._news.send(phase=Phase.FINISHED)

    def _close(self, generation: Generation) -> None:
        """The service's word is to leave; write the checkpoint if it falls to this rank."""
        self._save_last_words(lead=generation.closer == self._config.fragment and self._local_rank == 0)

    def _save_last_words(self, *, lead: bool) -> None:
        if lead and self._has_state:
            self._checkpoint(background=False)
            self._reporter.flush()
        else:
            self._checkpoints.wait()


def _obey(group: GenerationGroup, mailbox: Mailbox, news: NewsWriter) -> None:
    """Read the agent's commands until it is gone, then end the process at once."""
    for line in sys.stdin:
        directive = mailbox.put(Command.model_validate_json(line))
        if (broken := group.cut(directive.over)) is not None:
            # Said here and not by the training thread, which may be in the middle of a long step.
            news.send(broken=broken)
        if directive.generation is not None:
            group.cut_forming(below=directive.generation.number)
    # The rank leads a process group of its own: what the user's code has started goes with it.
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _describe(error: Exception, loop: TrainingLoop | None) -> Failure:
    text = str(error) if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
    return Failure(
        stage="load" if loop is None else "train",
        step=loop.step_count if loop is not None else 0,
        message=text,
        traceback="".join(traceback.format_exception(error))[-8000:],
    )


def main(config_file: str, local_rank: str, news_descriptor: str) -> None:
    """Entry point of the rank process: warm up, train, and end without ceremony."""
    # The scheduler signals every process of a job; leaving is the agent's decision.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = FragmentConfig.model_validate_json(Path(config_file).read_text(encoding="utf-8"))
    news, mailbox, group = NewsWriter(int(news_descriptor)), Mailbox(), GenerationGroup(config.node_address)
    threading.Thread(target=_obey, args=(group, mailbox, news), daemon=True, name="commands").start()
    torch.set_num_threads(config.spec.threads_per_rank)
    loop = None
    try:
        loop = TrainingLoop(load_task(config.spec), config.spec)
        RankProcess(config, int(local_rank), news, mailbox, group, loop).run()
    except Exception as error:
        traceback.print_exc()
        news.send(phase=Phase.FAILED, failure=_describe(error, loop))
    sys.stdout.flush()
    sys.stderr.flush()
    # Interpreter and torch teardown take long and can hang on a broken group; nothing is left to tear down.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
