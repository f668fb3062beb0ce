"""The step loop that a rank runs within a generation.

A step boundary is the moment after the optimizer and the scheduler have stepped; the cursor moves only there. If a
lost peer or an error in the user's code aborts a step before that, the state is that of the last finished step.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker.errors import CheckpointError, GroupError, TaskError, TrainingWarning
from oakum_worker.evaluation import EvaluatingRanks, evaluated_by, numbers_by_name
from oakum_worker.gathering import Gathering
from oakum_worker.parallel.gradient_look import NOTHING_IS_TRAINED, GradientLook, told_of_lacking_gradients
from oakum_worker.parallel.group import lost_peers
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.parallel.reshard import gather_documents
from oakum_worker.parallel.state_broadcast import broadcast_state
from oakum_worker.parallel.step_engine import Reduced, StepVotes
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_reduce
from oakum_worker.protocol import BestEvaluation
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.randomness.counters import mix, seed_everything
from oakum_worker.spec import TrainerSpec
from oakum_worker.state import trainer_state as state
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.state.cursor import Cursor
from oakum_worker.state.tree import dismantle
from oakum_worker.step.batch_sizes import batch_sizes
from oakum_worker.step.divergence import DivergenceWatch
from oakum_worker.step.forward_pass import ForwardPass
from oakum_worker.step.hooks import Hooks
from oakum_worker.step.metric_watch import MetricWatch
from oakum_worker.step.optimizer_step import OptimizerStep, UpdateOutcome
from oakum_worker.step.read_ahead import ReadAhead, read_in_order
from oakum_worker.step.reading_order import ReadingOrder
from oakum_worker.step.requirements import Requirements
from oakum_worker.step.sampler import ElasticSampler
from oakum_worker.step.step_batch import LossParts, StepBatch
from oakum_worker.step.step_times import StepTimes
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
        self._norms = normalise(task.model, spec.parallel.batch_norm)
        self._gathering = Gathering(task, spec)
        self._batches = batch_sizes(spec, len(task.dataset), task.optimizer)
        self._sampler = ElasticSampler(len(task.dataset), self._batches.at, spec.seed)
        self._cursor = Cursor()
        self._updater = OptimizerStep(task, spec)
        self.times = StepTimes()
        """How the steps' time divides among reading, waiting and computing."""
        self._readers = ReadAhead(task, spec.seed, spec.workers) if spec.workers else None
        order = ReadingOrder(
            self._sampler, spec.epochs, lambda samples, share: self.loss_parts.divide(samples, share)
        )
        self.batch_dims = batch_dims or BatchDims()
        """Where the samples lie in what the passes draw."""
        self._forward = ForwardPass(
            task,
            spec,
            self._updater.forward,
            self.times,
            read_ahead=None if self._readers is None else partial(read_in_order, self._readers, order),
            always_draws=by_hand or passes_are_collective(task, spec),
            dims=self.batch_dims,
        )
        self._own_parts: dict[str, Stateful] = {
            "updater": self._updater,
            "batches": self._batches,
            "draws": self.batch_dims,
        }
        self._metric = self._watched_metric()
        if self._metric is not None:
            self._own_parts["evaluations"] = self._metric
        self._parts = self._own_parts | {f"task.{name}": part for name, part in task.extra_state.items()}
        self.loss_parts = LossParts(
            task,
            spec,
            self._forward,
            self._sampler,
            self._norms,
            self._gathering,
            self._batches.measures_noise,
            self.times,
            order if spec.workers else None,
        )
        self.assembly = assemble(Ingredients(task, spec, self._batches.measures_noise))
        """The parts that depend on the trainer's strategy."""
        self._engine = self.assembly.engine
        self._engine.look = GradientLook()
        self._updater.grad_norm = self._engine.grad_norm
        self._noted = BoundarySnapshot(task)
        self._requirements = Requirements(task.model)
        self._hooks = Hooks(task)
        self._watch: DivergenceWatch | None = None
        if spec.divergence is not None:
            self._watch = DivergenceWatch(lambda: self.task.model.named_parameters(), spec.divergence)
        self._device = next(task.model.parameters()).device
        self._boundary = threading.Lock()
        """Held while the state changes from one step's values to the next step's."""
        self._in_step = False
        self._is_unsettled = False
        """Whether a step was taken by hand, after which the caller still changes the state."""
        self.is_stopped: Callable[[], bool] = lambda: False
        """Returns whether training was ended before its last epoch."""
        self.is_over: Callable[[], bool] = lambda: False
        """Returns whether the group was aborted from outside, which collectives on GPUs do not report."""
        self.is_evaluating = False
        """Whether the task's `evaluate` runs; meanwhile the model may hold other weights."""
        self.computing_since_s: float | None = None
        """When the task's code began to run in the present step or evaluation, in monotonic seconds; else None."""
        try:
            dismantle(self.state_dict())
        except TypeError as error:
            raise TaskError(f"the task's state cannot be saved: {error}") from error
        self.join(None, 0, 1)
        if spec.compile:
            self._forward.compile(min(spec.micro_batch or spec.global_batch, len(task.dataset)))

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
        self._group = group if world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        self._hooks.forget()
        # Otherwise ranks also wait within the passes, or `finish` waits for this rank's own work on its GPU.
        tells = not self._engine.passes_communicate or self._engine.tells_waiting
        plain = tells and self._device.type == "cpu" and not self.task.gathers
        self.times.tells_waiting = plain and self._group is not None
        if self._watch is not None:
            self._watch.forget()
        self._engine.join(self._group, world_size, rank=rank, subgroups=subgroups)
        self._norms.join(self._group, subgroups)
        self._gathering.join(self._group, rank, subgroups)

    def step(self, signal: int = 0, *, checkpoint: bool = False) -> StepResult:
        """Take one optimizer step on the next global batch.

        Every rank's result has the sum of the ranks' `signal`, which must stay below 2**24, and whether any rank
        asks for a `checkpoint`, so all ranks learn of both at the same step boundary.
        Raises `GroupError` if a rank is gone, and whatever the task's code raises; the step was then not taken.
        Raises `DivergedError`, on every rank after the same step, if training has diverged.
        """
        with self.times.step():
            return self._step(signal, checkpoint=checkpoint)

    def _step(self, signal: int, *, checkpoint: bool) -> StepResult:
        cursor = self._cursor
        num_samples = self._sampler.batch_size(cursor)
        self.open_step()
        try:
            with self.computing(), self._peers("during a step"):
                try:
                    reduced = self._compute_gradients(cursor, num_samples, self.votes(signal, checkpoint))
                except TaskError:
                    self._refuse_what_is_void()  # void results may have caused the error
                    raise
                self.check_step()
        except BaseException:
            self.abandon_step()
            raise
        return self.take_step(reduced)

    def open_step(self) -> None:
        """Begin a step: call the hooks of its beginning, and record what the task's code may change before the
        step is taken. `take_step` or `abandon_step` ends the step."""
        with self.computing():
            self._hooks.start_step(self._cursor, self._rank)
        with self._boundary:
            self._noted.take()
            self._in_step, self._is_unsettled = True, False

    def abandon_step(self) -> None:
        """End the open step without taking it: put back what was recorded when it began."""
        if self._engine.look is not None:
            self._engine.look.forget()
        with self._boundary:
            self._noted.restore()
            self._in_step = self._is_unsettled = False

    def put_back(self) -> None:
        """Put back what was recorded when the open step began, without ending it."""
        with self._boundary:
            self._noted.restore()

    def check_step(self) -> None:
        """Raise an error if the open step must not be taken: `GroupError` where its sums may be void, and
        `TaskError` where the task's code has changed which parameters require gradients, or where it is the first
        one of this process and no parameter got any. Warns in that step of parameters that got none."""
        self._refuse_what_is_void()
        self._requirements.check()
        self._look_at_gradients()

    def _look_at_gradients(self) -> None:
        look = self._engine.look
        if look is None or not look.expected:  # where this rank has computed nothing, its next step tells
            return
        names = {id(p): name for name, p in self.task.model.named_parameters() if p.requires_grad}
        lacking = {id(parameter) for parameter in look.lacking}
        look.forget()
        self._engine.look = None
        if len(lacking) == len(names):  # fewer where other ranks train the rest of the model
            raise TaskError(NOTHING_IS_TRAINED)
        if lacking:
            told = told_of_lacking_gradients([name for number, name in names.items() if number in lacking])
            warnings.warn(told, TrainingWarning, stacklevel=2)

    def settle(self) -> None:
        """The caller has changed all that it changes after a step by hand: the state may be copied again."""
        with self._boundary:
            self._is_unsettled = False

    def take_step(self, reduced: Reduced, *, settled: bool = True) -> StepResult:
        """Take the open step, whose gradients are complete. Without `settled` the state is in between until
        `settle` is called, and other threads cannot have it.

        Raises `DivergedError`, on every rank after the same step, if training has diverged.
        """
        cursor = self._cursor
        num_samples = self._sampler.batch_size(cursor)
        with self._boundary, self._peers("in the optimizer"):
            self._is_unsettled = not settled
            self._noted.learn()
            if self._watch is not None:
                self._watch.look(cursor.step + 1, reduced.loss, gradients=not self._updater.scales_losses)
            update = self._update(cursor, num_samples, reduced)
            with self.computing():
                self._hooks.end_step(cursor, reduced.loss, self._rank)
            self._in_step = False
        if self._watch is not None:
            self._watch.judge(self._cursor.step, found=reduced.votes.faults > 0, skipped=update.skipped)
        votes = reduced.votes
        return StepResult(
            self._cursor.step, cursor.epoch, reduced.loss, num_samples, votes.signal, votes.checkpoint > 0
        )

    def conclude(self) -> None:
        """Check the end of training; a collective. Raises `DivergedError` on every rank if the weights or the last
        loss are not finite on any rank."""
        if self._watch is not None:
            with lost_peers("when training ended"):
                self._watch.conclude(self._cursor.step, self._is_on_any_rank)

    def sums_over_ranks(self, *numbers: float) -> list[float]:
        """The sum over the ranks of each of the numbers, of which every rank gives as many. A collective. Raises
        `GroupError` where a rank is gone."""
        tensor = torch.tensor(numbers, dtype=torch.float64, device=self._device)
        if self._group is not None:
            with lost_peers("outside of a step"):
                all_reduce(tensor, self._group)
        return tensor.tolist()

    def _is_on_any_rank(self, fact: bool) -> bool:
        number = torch.tensor([float(fact)], device=self._device)
        if self._group is not None:
            all_reduce(number, self._group)
        return bool(number.item())

    @property
    def finite_tensors(self) -> frozenset[str]:
        """Paths of the tensors in the trainer's state that have to be finite for the state to be worth keeping."""
        if self._watch is None:
            return frozenset()
        return frozenset(f"model.{name}" for name, p in self.task.model.named_parameters() if p.requires_grad)

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
        self._cursor = after
        self._batches.observe(reduced.norms, self._cursor, num_samples, scale)
        return update

    def _compute_gradients(self, cursor: Cursor, num_samples: int, votes: StepVotes) -> Reduced:
        carried = self._batches.carried if self._batches.measures_noise else None
        batch = StepBatch(self.loss_parts, cursor, num_samples, self._updater.loss_scale, carried)
        self._norms.begin()
        self._engine.compute(batch, votes)
        self.computing_since_s = None  # from here on this rank may be waiting for others
        with self.times.waiting():
            return self._engine.finish()

    def votes(self, signal: int, checkpoint: bool) -> StepVotes:
        """This rank's votes in the next step."""
        has_fault = self._watch is not None and self._watch.has_found
        return StepVotes(signal, int(checkpoint), int(has_fault))

    def _refuse_what_is_void(self) -> None:
        """Raise `GroupError` if collectives on GPUs may have been aborted, which they do not report themselves."""
        if self._device.type != "cpu" and self.is_over():
            raise GroupError(
                "the service ended the generation during a step: the results of its collectives are void"
            )

    def _peers(self, when: str) -> AbstractContextManager[None]:
        """Context that turns errors of collectives into `GroupError`, whose message says `when`, for engines whose
        passes communicate; otherwise it does nothing."""
        return lost_peers(when) if self._engine.passes_communicate else nullcontext()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context in which the task's code runs, as the watch for hung steps understands it."""
        self.computing_since_s = time.monotonic()
        try:
            yield
        finally:
            self.computing_since_s = None

    @property
    def finished(self) -> bool:
        """Whether all epochs are done, or training was stopped or has ended early."""
        return self._has_all_epochs or self.is_stopped() or bool(self.ended_early)

    @property
    def _has_all_epochs(self) -> bool:
        return self._cursor.epoch >= self._spec.epochs

    @property
    def rank(self) -> int:
        """This rank's number in the present generation."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Ranks of the present generation."""
        return self._world_size

    @property
    def cursor(self) -> Cursor:
        """Where training stands."""
        return self._cursor

    @property
    def step_count(self) -> int:
        """Finished optimizer steps since the trainer began."""
        return self._cursor.step

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return self._cursor.epoch

    @property
    def samples(self) -> int:
        """Samples consumed since the trainer began."""
        return self._cursor.epoch * self._sampler.num_samples + self._cursor.consumed

    @property
    def total_samples(self) -> int:
        """Samples of all epochs."""
        return self._spec.epochs * self._sampler.num_samples

    @property
    def global_batch(self) -> int:
        """Samples of the next full global batch; an epoch's last batch may have fewer."""
        return self._batches.at(min(self._cursor.epoch, self._spec.epochs - 1))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all epochs, if an adaptive batch keeps its present size."""
        return self._batches.total_steps(self._cursor)

    @property
    def predicted_curve(self) -> tuple[tuple[int, float], ...]:
        """(nodes, samples per second), predicted from measurements of the layers; empty if there is no prediction.

        The first call may take seconds, so do not call this within a step.
        """
        return self._engine.predicted_curve

    @property
    def evaluation_due(self) -> bool:
        """Whether the task is to be evaluated at this step boundary: every so many steps or epochs, and after the
        last epoch. False for a task without `evaluate`."""
        if self.task.evaluate is None or self._cursor.step == 0:
            return False
        spec = self._spec.evaluate
        if spec is not None and spec.every_steps is not None:
            return self._cursor.step % spec.every_steps == 0 or self._has_all_epochs
        every = (None if spec is None else spec.every_epochs) or self.task.evaluate_every_epochs
        due = self._cursor.epoch % every == 0 or self._has_all_epochs
        return self._cursor.consumed == 0 and due

    @property
    def owes_evaluation(self) -> bool:
        """Whether an evaluation is due whose value of the watched metric was not recorded: the ranks that began it
        were lost. Equal on every rank after `agree_on_evaluations`."""
        return self._metric is not None and self.evaluation_due and self._metric.step < self._cursor.step

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation by the metric that the spec names; None before the first one and without such a
        metric."""
        return None if self._metric is None else self._metric.best

    @property
    def ended_early(self) -> str:
        """Why training ends before its last epoch; empty where it does not."""
        return "" if self._metric is None or self._has_all_epochs else self._metric.reason_to_end

    @property
    def takes_part_in_evaluations(self) -> bool:
        """Whether this rank has to call `evaluate`: rank 0, and all ranks where evaluations communicate."""
        return self.task.evaluates_together or self._engine.evaluates_on(self._rank)

    def evaluate(self) -> dict[str, float]:
        """The task's metrics by name; empty if the task has no `evaluate`, and on ranks that only help.

        Call it on every rank that `takes_part_in_evaluations`, and on no other. Raises `TaskError` if the task
        returns something other than numbers by name, or not the metric that the spec names, and whatever the
        task's code raises.
        """
        if self.task.evaluate is None:
            return {}
        modes = {module: module.training for module in self.task.model.modules()}
        seed_everything(mix(self._spec.seed, self._cursor.step))
        self.task.model.eval()
        with self._boundary:
            self.is_evaluating = True
        metrics: Any = {}
        is_here = False
        try:
            with (
                self._evaluated_weights(),
                self._engine.whole_model() as is_here,
                torch.no_grad(),
                evaluated_by(self._evaluating_ranks()),
                self.computing(),
            ):
                if is_here:
                    with self._peers("in an evaluation"):
                        metrics = self.task.evaluate(self.task.model)
        finally:
            _restore_modes(modes)
            self.is_evaluating = False
        numbers = numbers_by_name(metrics, "evaluate")
        if is_here and self._metric is not None:
            self._metric.value_of(numbers)
        return numbers

    def record_evaluation(self, metrics: Mapping[str, float]) -> bool:
        """Record rank 0's value of the metric that the spec names; a collective where the spec names one. Returns
        whether it is the best so far, equal on every rank, as is whether training is then `finished`.

        Raises `GroupError` where a rank is gone; the evaluation is then owed.
        """
        if self._metric is None:
            return False
        mine = self._metric.value_of(metrics) if self._rank == 0 else None
        value = self._told_by_all(mine)[0]
        with self._boundary:
            return self._metric.record(self._cursor.step, value)

    def agree_on_evaluations(self) -> None:
        """Take over the evaluations of the rank that has recorded most, once all ranks are at the same step
        boundary: others may have been cut off before they did. A collective where the spec names a metric. Raises
        `GroupError` where a rank is gone."""
        if self._metric is not None:
            told = self._told_by_all(self._metric.state_dict())
            with self._boundary:
                self._metric.load_state_dict(max(told, key=lambda state: state["step"]))

    def _told_by_all(self, document: Any) -> list[Any]:
        told = gather_documents(document, self._group, self._world_size)
        self._refuse_what_is_void()
        return told

    def _evaluating_ranks(self) -> EvaluatingRanks:
        """The ranks among which `sum_over` divides a data set: all, where all call the task's `evaluate`."""
        seed = mix(self._spec.seed, self._cursor.step)
        if self.task.evaluates_together and self._engine.has_model_on_each_rank:
            return EvaluatingRanks(self._group, self._rank, self._world_size, seed)
        return EvaluatingRanks(seed=seed)

    def _watched_metric(self) -> MetricWatch | None:
        spec = self._spec.evaluate
        if spec is not None and self.task.evaluate is None:
            raise TaskError(
                "the spec has `evaluate`, and the task has no function for it: return Task(..., evaluate=...), "
                "or leave it out of the spec"
            )
        return None if spec is None or spec.keep_best is None else MetricWatch(spec)

    def _evaluated_weights(self) -> AbstractContextManager[None]:
        """Context in which the model has the weights that the spec wants evaluated: its own or their average."""
        average, spec = self._updater.average, self._spec.ema
        is_wanted = average is not None and spec is not None and spec.evaluate
        return average.in_place() if average is not None and is_wanted else nullcontext()

    def state_dict(self) -> state.State:
        """The trainer's entire state. Its tensors are the live ones: copy what has to outlast the next step."""
        return state.capture(self.task, self._cursor, self._parts)

    @contextmanager
    def held_at_boundary(self) -> Iterator[state.State]:
        """Context that gives another thread than the training thread the state of the last finished step.

        The thread may enter it at any moment of a step, also in the middle of a forward pass: weights change only
        at the step's end, which waits until the context ends. Values that the task's code changes earlier are
        taken from the copies made at the step's beginning. Raises `TaskError` for a value that was not copied; it
        can be read only at a step boundary.
        """
        with self._boundary:
            if self._is_unsettled:
                raise TaskError("the script's loop has taken a step, and may still change what follows from it")
            if not self._in_step:
                yield self.state_dict()
                return
            held = state.capture(self.task, self._cursor, self._own_parts)
            held["model"] |= {n: copy for n, copy in self._noted.model().items() if n in held["model"]}
            noted = {f"task.{name}": part for name, part in self._noted.parts().items()}
            yield held | state.states_of_parts(held["parts"] | noted)

    def load_state_dict(self, loaded: state.State) -> None:
        """Continue from a state of `state_dict`. Raises `CheckpointError` if it does not fit the task."""
        with self._boundary:
            self._cursor = state.restore(self.task, loaded, self._parts)
            self._hooks.forget()

    def adopt_state_dict(self, loaded: state.State) -> None:
        """Begin from another trainer's state, with the task's own hyper-parameters.

        Raises `CheckpointError` if the state does not fit the task, its data set or its number of epochs.
        """
        with self._boundary:
            self._cursor = state.adopt(self.task, loaded, self._parts)
            if self._metric is not None:
                self._metric.forget()  # the best of another trainer is not among this one's checkpoints
            self._hooks.forget()
        if self.finished:
            raise CheckpointError(
                f"the state has finished {self._cursor.epoch} epochs, and the spec has {self._spec.epochs}: give "
                "more epochs"
            )
        if self._cursor.consumed >= self._sampler.num_samples:
            raise CheckpointError(
                f"the state has taken {self._cursor.consumed} samples of its epoch, and the data set has "
                f"{self._sampler.num_samples}: begin a new trainer for another data set"
            )

    def rest_of_state(self) -> state.State:
        """The state except the model's and the optimizer's: scheduler, cursor and further parts. Where the state
        is split, each rank has this rest whole."""
        return state.capture_rest(self.task, self._cursor, self._parts)

    def go_on_from(self, rest: Mapping[str, Any]) -> None:
        """Continue from a state of `rest_of_state` after the task's model was replaced.

        The new model and the optimizer already have their states.
        """
        with self._boundary:
            self._noted = BoundarySnapshot(self.task)
            self._requirements.follow(self.task.model)
            if self._watch is not None:
                self._watch.forget()  # the old model's parameters must not be kept alive
            self._hooks.forget()
            self._cursor = state.restore_rest(self.task, rest, self._parts)

    def share_state(self, source: int) -> None:
        """Collective: bring every rank of the group to the state of rank `source`, bit for bit.

        Raises `GroupError` if a rank is gone; this rank's state is then unchanged.
        """
        if self._group is None:
            return
        own = self.state_dict() if self._rank == source else None
        shared = broadcast_state(own, self._group, self._rank, source, self._device)
        if self._rank != source:
            self.load_state_dict(shared)


def _restore_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training
