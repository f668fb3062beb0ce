"""The step loop that a rank runs within a generation.

A step boundary is the moment after the optimizer and the scheduler have stepped; the cursor moves only there. If a
lost peer or an error in the user's code aborts a step before that, the state is that of the last finished step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist

from oakum_worker.errors import TaskError
from oakum_worker.gathering import Gathering
from oakum_worker.parallel.gradient_look import GradientLook
from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.parallel.step_engine import Reduced, StepVotes
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.state.tree import dismantle
from oakum_worker.step.batch_sizes import batch_sizes
from oakum_worker.step.divergence import DivergenceWatch
from oakum_worker.step.evaluations import Evaluations, watched_metric
from oakum_worker.step.hooks import Hooks
from oakum_worker.step.last_loss import LastLoss
from oakum_worker.step.live_state import LiveState
from oakum_worker.step.optimizer_step import OptimizerStep, UpdateOutcome
from oakum_worker.step.progress import Progress
from oakum_worker.step.ranks import Ranks
from oakum_worker.step.read_ahead import ReadAhead
from oakum_worker.step.requirements import Requirements
from oakum_worker.step.step_batch import StepBatch, loss_parts
from oakum_worker.step.task_clock import TaskClock
from oakum_worker.strategies.assembly import Ingredients, assemble, passes_are_collective
from oakum_worker.task import Stateful, Task


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a finished step, equal on every rank."""

    step: int
    """Finished steps since the trainer began, this one included."""
    epoch: int
    """The step's epoch, counted from 0."""
    loss: float
    """Loss before the update: the mean over the global batch, or the sum of the totals over the sum of their
    weights."""
    samples: int
    """Samples of the step's global batch."""
    signal: int
    """Sum of the ranks' signals."""
    checkpoint: bool = False
    """Whether a rank has asked for a durable checkpoint at this step boundary."""


class TrainingLoop:
    """Trains a task, alone or as one rank of a generation, one optimizer step at a time.

    The random numbers drawn for a sample (a dropout mask, an augmentation) depend only on the spec's seed, the
    step and the sample, so losses are equal at any number of ranks, except for rounding.

    Raises `TaskError` if the task's state cannot be saved and sent to other processes, and where the spec has
    `evaluate` and the task has not.
    """

    def __init__(
        self, task: Task, spec: TrainerSpec, *, by_hand: bool = False, batch_dims: BatchDims | None = None
    ) -> None:
        """`by_hand`: the passes are the caller's, who takes steps with `open_step` and `take_step`. `batch_dims`
        is what a rehearsal has learned of where the samples lie in what is drawn."""
        self.task = task
        self._spec = spec
        dims = batch_dims or BatchDims()
        self._build_passes(dims, always_draws=by_hand or passes_are_collective(task, spec))
        self._last_loss = LastLoss()
        self._build_state(
            {"updater": self._updater, "batches": self._batches, "draws": dims, "last_loss": self._last_loss}
        )
        self.join(None, 0, 1)
        if spec.compile:
            self.loss_parts.forward.compile(min(spec.micro_batch or spec.global_batch, len(task.dataset)))

    def _build_passes(self, dims: BatchDims, *, always_draws: bool) -> None:
        task, spec = self.task, self._spec
        self._norms = normalise(task.model, spec.parallel.batch_norm)
        self._gathering = Gathering(task, spec)
        self._batches = batch_sizes(spec, len(task.dataset), task.optimizer)
        self._updater = OptimizerStep(task, spec)
        self._readers = ReadAhead(task, spec.seed, spec.workers) if spec.workers else None
        self.loss_parts = loss_parts(
            task,
            spec,
            self._batches,
            self._norms,
            self._gathering,
            self._updater.forward,
            readers=self._readers,
            always_draws=always_draws,
            dims=dims,
        )
        """The objects that compute losses."""
        self.times = self.loss_parts.times
        """How the steps' time divides among reading, waiting and computing."""
        self._sampler = self.loss_parts.sampler

    def _build_state(self, parts: dict[str, Stateful]) -> None:
        task, spec, metric = self.task, self._spec, watched_metric(self.task, self._spec)
        self.assembly = assemble(Ingredients(task, spec, self._batches.measures_noise))
        """The parts that depend on the trainer's strategy."""
        self._engine = self.assembly.engine
        self._engine.look = GradientLook()
        self._updater.grad_norm = self._engine.grad_norm
        device = next(task.model.parameters()).device
        self.ranks = Ranks(device, passes_communicate=self._engine.passes_communicate)
        """The ranks of the present generation."""
        self._hooks, self._requirements = Hooks(task), Requirements(task.model)
        self._watch: DivergenceWatch | None = None
        if spec.divergence is not None:
            self._watch = DivergenceWatch(lambda: task.model.named_parameters(), spec.divergence)
        self.state = LiveState(
            task,
            parts,
            self.ranks,
            self._hooks,
            self._requirements,
            epochs=spec.epochs,
            divergence=self._watch,
            metric=metric,
        )
        """What training has come to: weights, optimizer, cursor and all that a checkpoint holds."""
        try:
            dismantle(self.state.state_dict())
        except TypeError as error:
            raise TaskError(f"the task's state cannot be saved: {error}") from error
        self.progress = Progress(
            self.state, self._batches, epochs=spec.epochs, epoch_size=self._sampler.num_samples
        )
        """How much of the training is finished."""
        self.clock = TaskClock()
        """Since when the task's code runs."""
        self.evaluations = Evaluations(
            task,
            spec,
            self.state,
            self.progress,
            self.ranks,
            self._engine,
            self.clock,
            metric=metric,
            average=self._updater.average,
        )
        """The evaluations between steps."""

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or training was stopped or has ended early."""
        progress = self.progress
        return progress.has_all_epochs or progress.is_stopped() or bool(self.evaluations.ended_early)

    @property
    def step_count(self) -> int:
        """Finished optimizer steps since the trainer began."""
        return self.state.cursor.step

    @property
    def last_loss(self) -> float | None:
        """The last finished step's loss, in whichever process that was; None before the first step, and where it
        is infinite or NaN."""
        return self._last_loss.value

    def start_readers(self) -> None:
        """Fork the processes that read samples, where the spec has any. A rank does so before it opens
        connections, which those processes would keep open. Otherwise the first read forks them."""
        if self._readers is not None:
            self._readers.start()

    def join(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        *,
        subgroups: Subgroups | None = None,
    ) -> None:
        """Continue as `rank` of `world_size` in `group`; without a group, or with a size of 1, train alone.

        `subgroups` forms groups of some of the ranks, for the strategies that need them. Raises `GroupError` if
        forming a group fails.
        """
        ranks, engine = self.ranks, self._engine
        ranks.join(group, rank, world_size)
        self._hooks.forget()
        # Otherwise ranks also wait within the passes, or `finish` waits for this rank's own work on its GPU.
        tells = not engine.passes_communicate or engine.tells_waiting
        plain = tells and ranks.device.type == "cpu" and not self.task.gathers
        self.times.tells_waiting = plain and ranks.group is not None
        if self._watch is not None:
            self._watch.forget()
        engine.join(ranks.group, world_size, rank=rank, subgroups=subgroups)
        self._norms.join(ranks.group, subgroups)
        self._gathering.join(ranks.group, rank, subgroups)

    def step(self, signal: Callable[[], int] = int, *, checkpoint: bool = False) -> StepResult:
        """Take one optimizer step on the next global batch.

        Every rank's result has the sum of what the ranks' `signal` return, which must stay below 2**24, and
        whether any rank asks for a `checkpoint`, so all ranks learn of both at the same step boundary. `signal` is
        called as late as the strategy can, so a signal that comes during the step often counts in it.
        Raises `GroupError` if a rank is gone, and whatever the task's code raises; the step was then not taken.
        Raises `DivergedError`, on every rank after the same step, if training has diverged.
        """
        with self.times.step():
            return self._step(signal, checkpoint=checkpoint)

    def _step(self, signal: Callable[[], int], *, checkpoint: bool) -> StepResult:
        cursor = self.state.cursor
        num_samples = self._sampler.batch_size(cursor)
        self.open_step()
        try:
            with self.clock.computing(), self.ranks.lost_in_passes("during a step"):
                try:
                    reduced = self._compute_gradients(cursor, num_samples, lambda: self.votes(signal, checkpoint))
                except Exception:
                    self.ranks.refuse_what_void_has_caused()
                    raise
                self.check_step()
        except BaseException:
            self.abandon_step()
            raise
        return self.take_step(reduced)

    def _compute_gradients(self, cursor: Cursor, num_samples: int, votes: Callable[[], StepVotes]) -> Reduced:
        carried = self._batches.carried if self._batches.measures_noise else None
        batch = StepBatch(self.loss_parts, cursor, num_samples, self._updater.loss_scale, carried)
        self._norms.begin()
        self._engine.compute(batch, votes)
        self.clock.stop()
        with self.times.waiting():
            return self._engine.finish()

    def votes(self, signal: Callable[[], int], checkpoint: bool) -> StepVotes:
        """This rank's votes in the step that is under way, as of now."""
        has_fault = self._watch is not None and self._watch.has_found
        return StepVotes(signal(), int(checkpoint), int(has_fault))

    def open_step(self) -> None:
        """Begin a step: call the hooks of its beginning, and record what the task's code may change before the
        step is taken. `take_step` or `abandon_step` ends the step."""
        with self.clock.computing():
            self._hooks.start_step(self.state.cursor, self.ranks.rank)
        self.state.open_step()

    def abandon_step(self) -> None:
        """End the open step without taking it: put back what was recorded when it began."""
        if self._engine.look is not None:
            self._engine.look.forget()
        self.state.abandon_step()

    def check_step(self) -> None:
        """Raise an error if the open step must not be taken: `GroupError` where its sums may be void, and
        `TaskError` where the task's code has changed which parameters require gradients, or where it is the first
        one of this process and no parameter got any. Warns in that step of parameters that got none."""
        self.ranks.refuse_what_is_void()
        self._requirements.check()
        look = self._engine.look
        if look is not None and look.expected:  # where this rank has computed nothing, its next step tells
            self._engine.look = None
            look.conclude(self.task.model)

    def take_step(self, reduced: Reduced, *, settled: bool = True) -> StepResult:
        """Take the open step, whose gradients are complete. Without `settled` the state is in between until its
        `settle` is called, and other threads cannot have it.

        Raises `DivergedError`, on every rank after the same step, if training has diverged.
        """
        cursor = self.state.cursor
        num_samples = self._sampler.batch_size(cursor)
        with self.state.taking_step(settled=settled), self.ranks.lost_in_passes("in the optimizer"):
            if self._watch is not None:
                self._watch.look(cursor.step + 1, reduced.loss, gradients=not self._updater.scales_losses)
            update = self._update(cursor, num_samples, reduced)
            if self._engine.passes_communicate:
                self.ranks.refuse_what_is_void()  # the optimizer may have communicated, too
            with self.clock.computing():
                self._hooks.end_step(cursor, reduced.loss, self.ranks.rank)
        if self._watch is not None:
            self._watch.judge(self.step_count, found=reduced.votes.faults > 0, skipped=update.skipped)
        votes = reduced.votes
        return StepResult(
            self.step_count, cursor.epoch, reduced.loss, num_samples, votes.signal, votes.checkpoint > 0
        )

    def _update(self, cursor: Cursor, num_samples: int, reduced: Reduced) -> UpdateOutcome:
        """Update the weights and move the cursor. The step can no longer be undone. Returns what the
        optimizer's step has done."""
        self._norms.commit()
        scale = self._updater.loss_scale
        after = cursor.after(num_samples, self._sampler.num_samples)
        schedule_steps = self._batches.schedule_steps(cursor, num_samples)
        if self.task.scheduler_by_epoch:
            schedule_steps = after.epoch - cursor.epoch
        update = self._updater.update(
            cursor.epoch + cursor.consumed / self._sampler.num_samples,
            self._batches.rate_factor(num_samples),
            schedule_steps=schedule_steps,
        )
        self.state.cursor = after
        self._last_loss.note(reduced.loss)
        self._batches.observe(reduced.norms, after, num_samples, scale)
        return update

    def conclude(self) -> None:
        """Check the end of training; a collective. Raises `DivergedError` on every rank if the weights or the last
        loss are not finite on any rank."""
        if self._watch is not None:
            with lost_peers("when training ended"):
                self._watch.conclude(self.step_count, self.ranks.has_any)
