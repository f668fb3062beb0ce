"""One rank process: warms up, then trains through one generation after another.

    python -m oakum_worker.rank CONFIG_FILE LOCAL_RANK NEWS_DESCRIPTOR MEMORY_DESCRIPTOR AFTER_GENERATION

The main thread trains. A second thread reads the agent's commands, keeps the newest in the mailbox, cuts the
process group when its generation is over, and leaves at once when told to. A third gives signs of life. Losing the
agent ends the process, whatever the main thread does.
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

from oakum_worker.channel import Command, NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.group import GenerationGroup
from oakum_worker.keeper import Keeper, ReplicatedKeeper
from oakum_worker.membership import Mailbox, next_generation
from oakum_worker.protocol import Failure, FragmentConfig, Generation, Phase, Switch
from oakum_worker.reporter import ProgressReporter
from oakum_worker.task import load_task
from oakum_worker.trainer import StepResult, TrainingLoop

_PULSE_S = 0.5


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
        keeper: Keeper,
        reporter: ProgressReporter,
        *,
        after: int = 0,
    ) -> None:
        self._fragment = config.fragment
        self._local_rank = local_rank
        self._news = news
        self._mailbox = mailbox
        self._group = group
        self._loop = loop
        self._keeper = keeper
        self._reporter = reporter
        self._formed = after
        self._entered = 0
        self._rank: int | None = None
        self._agreed = 0
        self._step_ended_s: float | None = None

    def run(self) -> None:
        """Train in one generation after the other until there is nothing left to do here."""
        self._news.send(phase=Phase.READY, endpoint=self._group.endpoint)
        while (generation := self._next_generation()) is not None:
            first = generation.first_rank(self._fragment)
            if first is None:
                # The service's word is to leave; the checkpoint is written where it falls to this rank.
                self._close(save=generation.closer == self._fragment and self._local_rank == 0)
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
            self._fragment,
            self._formed,
            at_least=self._agreed,
            member=self._rank is not None,
        )
        if self._mailbox.closing:
            self._close(save=self._mailbox.saving)
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
        source = self._keeper.begin(generation, rank)
        self._news.send(phase=Phase.TRAINING, generation=generation.number)
        self._reporter.enter(generation)
        first_step = True
        while not self._loop.finished:
            signal, durable = 0, False
            if rank == 0:
                signal, durable = self._mailbox.pending(generation.number), self._keeper.durable_due()
            result = self._loop.step(signal, checkpoint=durable)
            self._after_step(result, rank)
            if first_step:
                self._report_switch(generation, rank, source)
                first_step = False
            self._step_ended_s = time.monotonic()
            if result.signal:
                self._agreed = result.signal
                self._keeper.before_switch(generation, rank)
                return False
            if self._mailbox.closing:
                return False
        self._finish(rank)
        return True

    def _after_step(self, result: StepResult, rank: int) -> None:
        self._keeper.after_step(durable=result.checkpoint)
        if rank == 0:
            self._reporter.step(result.loss, result.samples)
            if self._loop.evaluation_due:
                self._reporter.metrics = self._loop.evaluate()

    def _report_switch(self, generation: Generation, rank: int, source: str) -> None:
        if rank != 0:
            return
        stall_s = None if self._step_ended_s is None else time.monotonic() - self._step_ended_s
        switch = Switch(
            generation=generation.number, step=self._loop.step_count - 1, stall_s=stall_s, source=source
        )
        self._news.send(switch=switch)

    def _finish(self, rank: int) -> None:
        """Evaluate and make the end durable."""
        if rank == 0:
            self._reporter.metrics = self._loop.evaluate()
        self._keeper.finish()
        if rank == 0:
            self._reporter.flush(final=True)
        self._news.send(phase=Phase.FINISHED)

    def _close(self, *, save: bool) -> None:
        self._keeper.close(save=save)
        if save:
            self._reporter.flush()


class Commands:
    """The thread that obeys the agent."""

    def __init__(self, news: NewsWriter, mailbox: Mailbox, group: GenerationGroup) -> None:
        self._news = news
        self._mailbox = mailbox
        self._group = group
        self._keeper: Keeper | None = None
        self._reporter: ProgressReporter | None = None

    def serve(self, keeper: Keeper, reporter: ProgressReporter) -> None:
        """From now on there is a state to leave behind."""
        self._keeper, self._reporter = keeper, reporter

    def run(self) -> None:
        """Read the agent's commands until it is gone, then end the process at once."""
        for line in sys.stdin:
            self._obey(Command.model_validate_json(line))
        # The rank leads a process group of its own: what the user's code has started goes with it.
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _obey(self, command: Command) -> None:
        directive = self._mailbox.put(command)
        if (broken := self._group.cut(directive.over)) is not None:
            # Said here and not by the training thread, which may be in the middle of a long step.
            self._news.send(broken=broken)
        if directive.generation is not None:
            self._group.cut_forming(below=directive.generation.number)
        if command.close and self._keeper is not None and self._keeper.close_at_once(save=command.save):
            if command.save and self._reporter is not None:
                self._reporter.flush()
            self._news.send(phase=Phase.LEFT)
            _end_process()


def _give_signs_of_life(news: NewsWriter, loop: TrainingLoop, step_timeout_s: float) -> None:
    """Until the task's code takes longer for one step than any step may."""
    while loop.computing_s <= step_timeout_s:
        news.send()
        time.sleep(_PULSE_S)
    news.send(hangs=True, warning=f"a step had not ended after {step_timeout_s:g} s (step_timeout_s)")


def _describe(error: Exception, loop: TrainingLoop | None) -> Failure:
    text = str(error) if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
    return Failure(
        stage="load" if loop is None else "train",
        step=loop.step_count if loop is not None else 0,
        message=text,
        traceback="".join(traceback.format_exception(error))[-8000:],
    )


def _end_process() -> None:
    """Interpreter and torch teardown take long and can hang on a broken group; nothing is left to tear down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main(config_file: str, local_rank: str, news_descriptor: str, memory: str, after: str) -> None:
    """Entry point of the rank process: warm up, train, and end without ceremony."""
    # The scheduler signals every process of a job; leaving is the agent's decision.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = FragmentConfig.model_validate_json(Path(config_file).read_text(encoding="utf-8"))
    spec = config.spec
    news, mailbox, group = NewsWriter(int(news_descriptor)), Mailbox(), GenerationGroup(config.node_address)
    commands = Commands(news, mailbox, group)
    threading.Thread(target=commands.run, daemon=True, name="commands").start()
    torch.set_num_threads(spec.threads_per_rank)
    loop = None
    try:
        loop = TrainingLoop(load_task(spec), spec)
        checkpoints = DurableCheckpoints(Path(config.checkpoint_dir), keep=spec.checkpoint.keep)
        threading.Thread(target=checkpoints.prepare, daemon=True, name="imports").start()
        keeper = ReplicatedKeeper(
            loop,
            spec.checkpoint,
            checkpoints,
            HostMemory(int(memory)) if local_rank == "0" else None,
            warn=lambda text: news.send(warning=text),
        )
        keeper.recall()
        reporter = ProgressReporter(news, loop, checkpoints)
        commands.serve(keeper, reporter)
        pulse = (news, loop, spec.step_timeout_s)
        threading.Thread(target=_give_signs_of_life, args=pulse, daemon=True, name="pulse").start()
        RankProcess(config, int(local_rank), news, mailbox, group, loop, keeper, reporter, after=int(after)).run()
    except Exception as error:
        traceback.print_exc()
        news.send(phase=Phase.FAILED, failure=_describe(error, loop))
    _end_process()


if __name__ == "__main__":
    main(*sys.argv[1:])
