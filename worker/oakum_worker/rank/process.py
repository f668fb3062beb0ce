"""One rank process: warms up, then trains through one generation after another.

    python -m oakum_worker.rank.process CONFIG_FILE LOCAL_RANK NEWS_DESCRIPTOR MEMORY_DESCRIPTOR AFTER_GENERATION

The main thread trains. A second thread reads the agent's commands, keeps the newest in the mailbox, cuts the
process group when its generation is over, and leaves at once when told to. A third thread gives signs of life. The
process ends when its agent ends, whatever the main thread does.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import traceback
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import torch

from oakum_worker.channel import NewsWriter
from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.checkpoint.host_memory import HostMemory
from oakum_worker.devices import use_device
from oakum_worker.errors import DivergedError, GroupError
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.keeping.keeper import Keeper, KeeperContext
from oakum_worker.parallel.group import GenerationGroup
from oakum_worker.protocol import Generation, Phase, Switch
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.rank.failures import failure_of
from oakum_worker.rank.membership import Mailbox, next_generation
from oakum_worker.rank.reporter import ProgressReporter
from oakum_worker.rank.start_up import StartUp
from oakum_worker.rank.threads import Commands, end_process, give_signs_of_life, hand_on_warnings
from oakum_worker.session.hosts import RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.step.divergence import tensors_to_be_finite
from oakum_worker.step.training_loop import StepResult, TrainingLoop
from oakum_worker.step.turns import Course, StepOrder, Turns
from oakum_worker.task import load_task


class RankProcess:
    """What the main thread of a rank process does: form generations, train in them, and report."""

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
        self._has_joined = False
        self._agreed = 0
        self._step_ended_s: float | None = None

    def run(self) -> None:
        """Train in one generation after another, until the trainer is finished or the agent wants the rank to
        leave. Raises `DivergedError` where training diverged, and whatever the task's code raises."""
        course = Course(self.turns())
        while (order := course.order) is not None:
            try:
                result = self._loop.step(order.signal, checkpoint=order.checkpoint)
            except Exception as error:
                course.failed(error)
            else:
                course.taken(result)
        if course.is_finished:
            self._news.send(phase=Phase.FINISHED)

    def turns(self) -> Turns:
        """Generator of the steps to take, through one generation after another; the caller takes them.

        The caller sends the result of each step, or None where training stops before its end, or throws the error
        that the step has raised. Returns when the trainer is finished (True) or this rank has left (False). Raises
        `DivergedError` where training diverged, and the errors that it cannot deal with.
        """
        self._tell(Phase.READY, endpoint=self._group.endpoint)
        while (generation := self._next_generation()) is not None:
            first = generation.first_rank(self._fragment)
            if first is None:
                # This rank trains no further for now. It saves if its fragment is the saver, or if the ranks did
                # not agree to leave their last generation: the other ranks may be gone.
                falls_here = generation.saver == self._fragment or self._agreed <= self._formed
                self._close(save=falls_here and self._local_rank == 0)
                if self._mailbox.leaving:
                    break
                self._wait_anew(generation.number)
                continue
            try:
                if (yield from self._train_in(generation, first + self._local_rank)):
                    return True
            except DivergedError:
                # A checkpoint begun earlier is good; `_close` waits for it, and the last report names it.
                self._close(save=False)
                if first + self._local_rank == 0:
                    self._reporter.flush()
                raise
            except GroupError as error:
                print(f"generation {generation.number} broke: {str(error).splitlines()[0]}", flush=True)
                if self._entered == generation.number or not self._mailbox.pending(generation.number):
                    # A rank that has joined no generation yet is still ready, and waits for the next generation.
                    self._tell(Phase.BROKEN if self._has_joined else Phase.READY, broken=generation.number)
                elif not self._has_joined:
                    self._tell(Phase.READY)
                # Otherwise it was superseded before its group formed; reporting BROKEN would make the service cut
                # the previous generation.
            self._group.leave()
        self._news.send(phase=Phase.LEFT)
        return False

    def _wait_anew(self, after: int) -> None:
        """Leave the group, keep this rank's state, and report that it can join generations above `after`."""
        self._formed, self._has_joined, self._step_ended_s = after, False, None
        self._group.leave()
        self._tell(Phase.READY)

    def _tell(self, phase: Phase, **news: object) -> None:
        self._news.send(phase=phase, holds=self._keeper.holds_state, **news)

    def _next_generation(self) -> Generation | None:
        """Wait for the generation to train in next. None when the rank has to leave; its state is then saved where
        that is this rank's task."""
        generation = next_generation(
            self._mailbox,
            self._fragment,
            self._formed,
            at_least=self._agreed,
            member=self._has_joined,
        )
        if self._mailbox.closing:
            self._close(save=self._mailbox.saving)
            return None
        if generation is None and self._keeper.holds_state:  # found in memory: nobody else may have it
            self._close(save=self._local_rank == 0)
        return generation

    def _train_in(self, generation: Generation, rank: int) -> Turns:
        """Train as `rank` of the generation until the next one is agreed on; True when the trainer is done.

        Raises `GroupError` when the generation breaks; every finished step is then still in the loop.
        """
        self._formed = generation.number
        group = self._group.form(generation, rank)
        self._entered = generation.number
        self._loop.join(group, rank, generation.world_size, subgroups=self._group.subgroups)
        source = self._keeper.begin(generation, rank)
        self._has_joined = True
        self._tell(Phase.TRAINING, generation=generation.number)
        self._reporter.enter(generation, rank)
        self._loop.evaluations.agree()
        if is_evaluated := self._loop.evaluations.is_owed:
            self._evaluate()
        began_s: float | None = time.monotonic()
        while not self._loop.finished:
            order = StepOrder()
            if rank == 0:
                order = StepOrder(partial(self._mailbox.pending, generation.number), self._keeper.durable_due())
            result = yield order
            if result is None:
                break
            may_close = self._after_step(result, rank)
            is_evaluated = True
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
        self._finish(rank, is_evaluated=is_evaluated)
        return True

    def _after_step(self, result: StepResult, rank: int) -> bool:
        may_close = self._keeper.after_step(durable=result.checkpoint)
        if rank == 0:
            self._reporter.step(result.loss, result.samples)
        if self._loop.evaluations.is_due:
            self._evaluate()
            if rank == 0 and not self._loop.finished:
                self._reporter.flush()  # this rank may be about to leave
        return may_close

    def _evaluate(self) -> None:
        """Evaluate the task, and keep this step's checkpoint where it is the best one. Raises `GroupError` where a
        rank is lost meanwhile."""
        evaluations = self._loop.evaluations
        metrics = evaluations.run() if evaluations.include_this_rank else {}
        if metrics:
            self._reporter.evaluated(metrics)
        if evaluations.record(metrics) and evaluations.best is not None:
            self._keeper.keep_best(evaluations.best)

    def _report_switch(self, generation: Generation, rank: int, source: str, began_s: float) -> None:
        """Report, from rank 0, how the generation began, after its first step, which began at `began_s`."""
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

    def _finish(self, rank: int, *, is_evaluated: bool) -> None:
        """Evaluate, unless that was done after the last step, and save the final state. Raises `DivergedError`
        where training diverged."""
        self._loop.conclude()
        if not is_evaluated and self._loop.evaluations.include_this_rank:
            self._reporter.evaluated(self._loop.evaluations.run())  # its metrics may not have been reported
        self._keeper.finish()
        if rank == 0:
            self._reporter.flush(final=True)

    def _close(self, *, save: bool) -> None:
        save = save and self._keeper.holds_state
        self._keeper.close(save=save)
        if save:
            self._reporter.flush()


class _ThisProcess:
    """The `KeeperProcess` of this process, through which the keeper waits for generations and warns the user."""

    def __init__(self, config: FragmentConfig, local_rank: int, mailbox: Mailbox, news: NewsWriter) -> None:
        self._config = config
        self._local_rank = local_rank
        self._mailbox = mailbox
        self._news = news

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        """Wait for a generation of number `at_least` or above. Returns (its number, this process's rank in it),
        with the rank None if the process is no member. Returns None instead of the pair if the process is told to
        close before there is such a generation."""
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
        """Send the user a warning, through the agent. Training goes on."""
        self._news.send(warning=text)


def main(config_file: str, local_rank: str, news_descriptor: str, memory: str, after: str) -> None:
    """Entry point of the rank process: warm up, train, and end the process at once, without Python's teardown.
    Arguments are texts, as on the command line (see the module)."""
    # The scheduler signals every process of a job; leaving is the agent's decision.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_up = StartUp()
    start_up.ended("imports")
    config = FragmentConfig.model_validate_json(Path(config_file).read_text(encoding="utf-8"))
    spec = config.spec
    news, mailbox = NewsWriter(int(news_descriptor)), Mailbox()
    group = GenerationGroup(config.node_address, towards=urlsplit(config.service_url).hostname)
    hand_on_warnings(news)
    commands = Commands(news, mailbox, group)
    threading.Thread(target=commands.run, daemon=True, name="commands").start()
    start_up.ended("store")
    torch.set_num_threads(spec.threads_per_rank)
    gc.freeze()  # torch's modules stay, so garbage collections during a switch need not go through them
    loop: TrainingLoop | None = None

    def set_up(of: TrainingLoop) -> RankProcess:
        """Give the loop what a rank has beside it, and begin to give signs of life."""
        nonlocal loop
        loop = of
        use_device(next(loop.task.model.parameters()).device, config.num_ranks)
        loop.start_readers()
        checkpoints.finite = tensors_to_be_finite(loop.task.model, loop.loss_parts.spec.divergence)
        threading.Thread(target=checkpoints.prepare, daemon=True, name="imports").start()
        process = _ThisProcess(config, int(local_rank), mailbox, news)
        host_memory = HostMemory(int(memory)) if local_rank == "0" else None
        keeper = loop.assembly.make_keeper(KeeperContext(loop.state, spec, checkpoints, process, host_memory))
        reporter = ProgressReporter(news, loop, checkpoints)
        commands.serve(keeper, reporter)
        pulse = (news, loop.clock, group, reporter, spec.step_timeout_s)
        threading.Thread(target=give_signs_of_life, args=pulse, daemon=True, name="pulse").start()
        start_up.ended("state")
        print(start_up, flush=True)
        return RankProcess(config, int(local_rank), news, mailbox, group, loop, keeper, reporter, after=int(after))

    try:
        checkpoints = DurableCheckpoints(Path(config.checkpoint_dir), keep=spec.checkpoint.keep)
        if spec.script is not None:
            run_script(spec, RankHost(spec, lambda of: set_up(of).turns(), end_process))
            news.send(phase=Phase.FINISHED)
            end_process()
        task, batch_dims = load_task(spec), BatchDims()
        start_up.ended("task")
        if local_rank == "0" and after == "0" and not checkpoints.candidates():
            from oakum_worker.rehearsal import rehearse_and_warn  # late: who joins later does without

            rehearse_and_warn(task, spec, batch_dims=batch_dims)
            start_up.ended("rehearsal")
        loop = TrainingLoop(task, spec, batch_dims=batch_dims)
        set_up(loop).run()
    except Exception as error:
        traceback.print_exc()
        news.send(phase=Phase.FAILED, failure=failure_of(error, None if loop is None else loop.step_count, spec))
    end_process()


if __name__ == "__main__":
    main(*sys.argv[1:])
