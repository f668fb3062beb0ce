"""One rank process: warms up, then trains through one generation after another.

    python -m oakum_worker.rank CONFIG_FILE LOCAL_RANK NEWS_DESCRIPTOR MEMORY_DESCRIPTOR AFTER_GENERATION

The main thread trains. A second thread reads the agent's commands, keeps the newest in the mailbox, cuts the
process group when its generation is over, and leaves at once when told to. A third gives signs of life. Losing the
agent ends the process, whatever the main thread does.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

import torch

from oakum_worker.channel import NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.group import GenerationGroup
from oakum_worker.keeper import Keeper, ReplicatedKeeper
from oakum_worker.membership import Mailbox, next_generation
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.protocol import Failure, FragmentConfig, Generation, Phase, Switch
from oakum_worker.rank_threads import Commands, end_process, give_signs_of_life, hand_on_warnings
from oakum_worker.reporter import ProgressReporter
from oakum_worker.task import load_task
from oakum_worker.trainer import StepResult, TrainingLoop


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
        self._loop.join(group, rank, generation.world_size, subgroups=self._group.subgroups)
        source = self._keeper.begin(generation, rank)
        self._news.send(phase=Phase.TRAINING, generation=generation.number)
        self._reporter.enter(generation)
        began_s: float | None = time.monotonic()
        while not self._loop.finished:
            signal, durable = 0, False
            if rank == 0:
                signal, durable = self._mailbox.pending(generation.number), self._keeper.durable_due()
            result = self._loop.step(signal, checkpoint=durable)
            may_close = self._after_step(result, rank)
            if began_s is not None:
                self._report_switch(generation, rank, source, began_s)
                began_s = None
            self._step_ended_s = time.monotonic()
            if result.signal:
                self._agreed = result.signal
                self._keeper.before_switch(generation, rank)
                return False
            if self._mailbox.closing and may_close:
                return False
        self._finish(rank)
        return True

    def _after_step(self, result: StepResult, rank: int) -> bool:
        may_close = self._keeper.after_step(durable=result.checkpoint)
        if rank == 0:
            self._reporter.step(result.loss, result.samples)
        if self._loop.evaluation_due:
            self._evaluate(rank)
        return may_close

    def _evaluate(self, rank: int) -> None:
        if rank == 0 or self._loop.shards is not None:
            self._reporter.metrics = self._loop.evaluate()

    def _report_switch(self, generation: Generation, rank: int, source: str, began_s: float) -> None:
        """Tell how the generation began, after its first step, which began then."""
        if rank != 0:
            return
        now_s = time.monotonic()
        switch = Switch(
            generation=generation.number,
            step=self._loop.step_count - 1,
            stall_s=None if self._step_ended_s is None else now_s - self._step_ended_s,
            step_s=now_s - began_s,
            source=source,
        )
        self._news.send(switch=switch)

    def _finish(self, rank: int) -> None:
        """Evaluate and make the end durable."""
        self._evaluate(rank)
        self._keeper.finish()
        if rank == 0:
            self._reporter.flush(final=True)
        self._news.send(phase=Phase.FINISHED)

    def _close(self, *, save: bool) -> None:
        self._keeper.close(save=save)
        if save:
            self._reporter.flush()


class _Surroundings:
    """What the keeper of a sharded trainer has to know of its process."""

    def __init__(self, config: FragmentConfig, local_rank: int, mailbox: Mailbox, news: NewsWriter) -> None:
        self._config = config
        self._local_rank = local_rank
        self._mailbox = mailbox
        self._news = news

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        """Waits for a generation not below `at_least`: its number, and this process's rank in it, if any."""
        directive = self._mailbox.wait_for(lambda d: d.generation is not None and d.generation.number >= at_least)
        if directive is None or directive.generation is None:
            return None
        first = directive.generation.first_rank(self._config.fragment)
        return directive.generation.number, None if first is None else first + self._local_rank

    def closing(self) -> bool:
        """Whether this process has been told to leave without waiting for another generation."""
        return self._mailbox.closing

    def initial_values(self) -> dict[str, torch.Tensor]:
        """The model's parameters and buffers by name, built once more as they were at the very beginning."""
        state = load_task(self._config.spec).model.state_dict()
        return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}

    def warn(self, text: str) -> None:
        """Tell the user of something that does not end training."""
        self._news.send(warning=text)


def _keeper(
    loop: TrainingLoop,
    config: FragmentConfig,
    local_rank: int,
    checkpoints: DurableCheckpoints,
    memory: int,
    mailbox: Mailbox,
    news: NewsWriter,
) -> Keeper:
    """The keeper of a trainer of this kind, with what a process before this one has left to it."""
    around = _Surroundings(config, local_rank, mailbox, news)
    if loop.shards is not None:
        from oakum_worker.sharded_keeper import ShardedKeeper  # late: it takes a second to import

        assert not isinstance(loop.engine, GradientReducer)
        if config.spec.parallel.pipeline is None:
            from oakum_worker.parallel.sharded import warm_up

            warm_up()
        return ShardedKeeper(loop, loop.shards, loop.engine, config.spec, checkpoints, around)
    host_memory = HostMemory(memory) if local_rank == 0 else None
    keeper = ReplicatedKeeper(loop, config.spec.checkpoint, checkpoints, host_memory, around.warn)
    keeper.recall()
    return keeper


def _describe(error: Exception, loop: TrainingLoop | None) -> Failure:
    text = str(error) if isinstance(error, TaskError) else f"{type(error).__name__}: {error}"
    return Failure(
        stage="load" if loop is None else "train",
        step=loop.step_count if loop is not None else 0,
        message=text,
        traceback="".join(traceback.format_exception(error))[-8000:],
    )


def main(config_file: str, local_rank: str, news_descriptor: str, memory: str, after: str) -> None:
    """Entry point of the rank process: warm up, train, and end without ceremony."""
    # The scheduler signals every process of a job; leaving is the agent's decision.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = FragmentConfig.model_validate_json(Path(config_file).read_text(encoding="utf-8"))
    spec = config.spec
    news, mailbox, group = NewsWriter(int(news_descriptor)), Mailbox(), GenerationGroup(config.node_address)
    hand_on_warnings(news)
    commands = Commands(news, mailbox, group)
    threading.Thread(target=commands.run, daemon=True, name="commands").start()
    torch.set_num_threads(spec.threads_per_rank)
    gc.freeze()  # torch's modules stay: collections in the middle of a switch need not look through them
    loop = None
    try:
        loop = TrainingLoop(load_task(spec), spec)
        loop.is_over = lambda: group.is_cut
        checkpoints = DurableCheckpoints(Path(config.checkpoint_dir), keep=spec.checkpoint.keep)
        threading.Thread(target=checkpoints.prepare, daemon=True, name="imports").start()
        keeper = _keeper(loop, config, int(local_rank), checkpoints, int(memory), mailbox, news)
        reporter = ProgressReporter(news, loop, checkpoints)
        commands.serve(keeper, reporter)
        pulse = (news, loop, spec.step_timeout_s)
        threading.Thread(target=give_signs_of_life, args=pulse, daemon=True, name="pulse").start()
        RankProcess(config, int(local_rank), news, mailbox, group, loop, keeper, reporter, after=int(after)).run()
    except Exception as error:
        traceback.print_exc()
        news.send(phase=Phase.FAILED, failure=_describe(error, loop))
    end_process()


if __name__ == "__main__":
    main(*sys.argv[1:])
