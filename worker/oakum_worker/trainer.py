"""The step loop that a rank runs within a generation.

A step boundary is the moment after the optimizer and the scheduler have stepped; the cursor moves only there. What
breaks a step off before, a lost peer or an error in the user's code, leaves the state of the last finished step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from oakum_worker import state
from oakum_worker.batch_size import batch_sizes
from oakum_worker.boundary import BoundarySnapshot
from oakum_worker.errors import GroupError, TaskError
from oakum_worker.forward_pass import ForwardPass
from oakum_worker.group import lost_peers
from oakum_worker.parallel.chunks import Chunk, equal_chunks, own_chunks
from oakum_worker.parallel.data import GradientReducer, Reduced
from oakum_worker.parallel.normalisation import normalise, warn_of_batch_norm
from oakum_worker.parallel.sharing import share
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.randomness import mix, seed_everything
from oakum_worker.replica_batch import ReplicaBatch
from oakum_worker.sampler import Cursor, ElasticSampler, share_of
from oakum_worker.skeleton import dismantle
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Stateful, Task
from oakum_worker.updating import Updater

if TYPE_CHECKING:
    from oakum_worker.parallel.pipeline.replicas import ReplicaEngine
    from oakum_worker.parallel.pipeline.state import StageState
    from oakum_worker.parallel.sharded import ShardedEngine
    from oakum_worker.parallel.shards import Shards


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step, the same on every rank."""

    step: int
    """Finished steps since the trainer began, this one included."""
    epoch: int
    """The epoch it belongs to, from 0."""
    loss: float
    """Mean over the global batch, before the step."""
    samples: int
    """Samples of its global batch."""
    signal: int
    """Sum of the ranks' signals."""
    checkpoint: bool = False
    """Whether a rank has asked for a durable checkpoint at this step boundary."""


class TrainingLoop:
    """Trains a task, alone or as one rank of a generation, one optimizer step at a time.

    What is drawn for a sample, a dropout mask or an augmentation, depends on the spec's seed, the step and the
    sample alone: losses are the same at any number of ranks, but for rounding.

    Raises `TaskError` where the task's state cannot be carried from one process to another.
    """

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        self.task = task
        self._spec = spec
        self._norms = normalise(task.model, spec.parallel.batch_norm)
        self._batches = batch_sizes(spec, len(task.dataset), task.optimizer)
        self._sampler = ElasticSampler(len(task.dataset), self._batches.at, spec.seed)
        self._cursor = Cursor()
        self._updater = Updater(task, spec)
        self._forward = ForwardPass(task, spec, self._updater.forward)
        self._own_parts: dict[str, Stateful] = {"updater": self._updater, "batches": self._batches}
        self._parts = self._own_parts | {f"task.{name}": part for name, part in task.extra_state.items()}
        self.shards: Shards | StageState | None = None
        """Where no rank has the whole state: the task's model and optimizer, laid out anew for each generation."""
        self.engine: GradientReducer | ShardedEngine | ReplicaEngine
        self._reducer: GradientReducer | ShardedEngine | None = None
        self._replicas: ReplicaEngine | None = None
        if spec.parallel.pipeline is not None:
            self.shards, self._replicas = _spread(task, spec)
            self.engine, self._updater.grad_norm = self._replicas, self._replicas.grad_norm
        elif spec.parallel.data == "sharded":
            self.shards, self._reducer = _shard(task)
            self.engine = self._reducer
        else:
            self.engine = self._reducer = GradientReducer(
                task.model,
                measure_noise=self._batches.measures_noise,
                all_reduce=spec.parallel.all_reduce,
                ranks_per_node=spec.ranks_per_node,
            )
        self._noted = BoundarySnapshot(task)
        self._device = next(task.model.parameters()).device
        self._boundary = threading.Lock()
        """Held while the state is between two steps' values."""
        self._in_step = False
        self.is_over: Callable[[], bool] = lambda: False
        """Whether the group has been broken from outside, which a collective on GPUs does not tell."""
        self.is_evaluating = False
        """Whether the task's `evaluate` runs, which may put other weights into the model for the time."""
        self.computing_since_s: float | None = None
        """When the task's code began with the present step or evaluation, in monotonic time; else None."""
        try:
            dismantle(self.state_dict())
        except TypeError as error:
            raise TaskError(f"the task's state cannot be saved: {error}") from error
        self.join(None, 0, 1)
        if spec.compile:
            self._forward.compile(min(spec.micro_batch or spec.global_batch, len(task.dataset)))

    def join(
        self,
        group: dist.ProcessGroup | None,
        rank: int,
        world_size: int,
        *,
        subgroups: Subgroups | None = None,
    ) -> None:
        """Go on as `rank` of `world_size` in `group`; None, or a size of 1, is alone.

        `subgroups` forms groups of some of the ranks, which not every way of sharing the work needs. Raises
        `GroupError` where that fails.
        """
        self._group = group if world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        self.engine.join(self._group, world_size, subgroups=subgroups)
        # Stages are computed at different times, so their layers cannot meet.
        self._norms.join(self._group if self._replicas is None else None, subgroups)

    def step(self, signal: int = 0, *, checkpoint: bool = False) -> StepResult:
        """Take one optimizer step on the next global batch.

        The sum of the ranks' `signal`, which has to stay below 2**24, is in every rank's result, and so is whether
        one of them wants a `checkpoint`: all ranks learn of it at the same step boundary.
        Raises `GroupError` when a rank is gone, and whatever the task's code raises; the step was then not taken.
        """
        cursor = self._cursor
        num_samples = self._sampler.batch_size(cursor)
        with self._boundary:
            self._noted.take()
            self._in_step = True
        try:
            with self._computing(), self._peers("during a step"):
                reduced = self._compute_gradients(cursor, num_samples, signal, checkpoint)
                self._refuse_what_is_void()
        except BaseException:
            with self._boundary:
                self._noted.restore()
                self._in_step = False
            raise
        with self._boundary, self._peers("in the optimizer"):
            self._noted.learn()
            self._update(cursor, num_samples, reduced)
            self._in_step = False
        return StepResult(
            self._cursor.step, cursor.epoch, reduced.loss, num_samples, reduced.signal, reduced.flag > 0
        )

    def _update(self, cursor: Cursor, num_samples: int, reduced: Reduced) -> None:
        """From here on the step is taken, whatever happens."""
        self._norms.commit()
        scale = self._updater.loss_scale
        self._updater.update(
            cursor.epoch + cursor.consumed / self._sampler.num_samples,
            self._batches.rate_factor(num_samples),
            schedule_steps=self._batches.schedule_steps(cursor, num_samples),
        )
        self._cursor = cursor.after(num_samples, self._sampler.num_samples)
        self._batches.observe(reduced.norms, self._cursor, num_samples, scale)

    def _compute_gradients(self, cursor: Cursor, num_samples: int, signal: int, checkpoint: bool) -> Reduced:
        if self._replicas is not None:
            return self._compute_in_stages(self._replicas, cursor, num_samples, signal, checkpoint)
        share = share_of(num_samples, self._rank, self._world_size)
        carried: dict[str, Any] = {"carried": self._batches.carried} if self._batches.measures_noise else {}
        engine = self._reducer
        assert engine is not None
        engine.begin(len(share), num_samples, signal, flag=int(checkpoint), **carried)
        self._norms.begin()
        chunks = self._chunks(num_samples)
        for chunk in chunks:
            positions = chunk.positions
            self._norms.counts = chunk.num_counted > 0
            indices = self._sampler.indices(cursor, positions)
            with self._forward.loss(cursor, positions, indices) as loss:
                scale = self._updater.loss_scale
                engine.backward(loss, chunk.num_counted, last=chunk is chunks[-1], scale=scale)
        self.computing_since_s = None  # from here on it may be others that this rank waits for
        return engine.finish()

    def _compute_in_stages(
        self, replicas: ReplicaEngine, cursor: Cursor, num_samples: int, signal: int, checkpoint: bool
    ) -> Reduced:
        assert self.task.chain is not None
        replicas.begin(num_samples, signal, flag=int(checkpoint))
        chunks = replicas.chunks(num_samples)
        work = ReplicaBatch(self._forward, self.task.chain, self._sampler, cursor, chunks, num_samples)
        replicas.run(work)
        self.computing_since_s = None  # from here on it may be others that this rank waits for
        return replicas.finish(work.loss_sum, work.num_counted)

    def _refuse_what_is_void(self) -> None:
        """Raise `GroupError` where collectives may have been aborted on the way, as GPUs do not tell."""
        if self._device.type != "cpu" and self.is_over():
            raise GroupError("the generation was declared over during a step: what its collectives gave is void")

    def _peers(self, when: str) -> AbstractContextManager[None]:
        """Within it, errors of collectives that sharded tensors start by themselves are `GroupError`s."""
        return nullcontext() if self.shards is None else lost_peers(when)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        self.computing_since_s = time.monotonic()
        try:
            yield
        finally:
            self.computing_since_s = None

    def _chunks(self, num_samples: int) -> list[Chunk]:
        """The micro-batches that this rank computes of a global batch; none where it has no share."""
        size = self._spec.micro_batch
        if self.shards is not None or self._norms.is_used:
            return equal_chunks(num_samples, self._rank, self._world_size, size)
        if self._batches.measures_noise and self._world_size == 1:
            half = max(-(-num_samples // 2), 1)  # noise shows in what parts of a batch differ in
            size = min(size or half, half)
        return own_chunks(num_samples, self._rank, self._world_size, size)

    @property
    def finished(self) -> bool:
        """Whether all epochs are done."""
        return self._cursor.epoch >= self._spec.epochs

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
        """Samples of the present epoch's steps; its last one may have fewer."""
        return self._batches.at(min(self._cursor.epoch, self._spec.epochs - 1))

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all epochs; with batches that adapt, should they stay as they are."""
        return self._batches.total_steps(self._cursor)

    @property
    def predicted_curve(self) -> tuple[tuple[int, float], ...]:
        """(nodes, samples per second) as predicted from what was measured of the layers; empty where it is not.

        The prediction takes up to seconds when it is asked for first, so not within a step.
        """
        return () if self._replicas is None else self._replicas.predicted_curve

    @property
    def evaluation_due(self) -> bool:
        """Whether this step boundary is one at which the task wants to be evaluated."""
        at_epoch_end = self._cursor.consumed == 0 and self._cursor.step > 0
        due = self._cursor.epoch % self.task.evaluate_every_epochs == 0 or self.finished
        return self.task.evaluate is not None and at_epoch_end and due

    def evaluate(self) -> dict[str, float]:
        """The task's metrics; none where it has no `evaluate`.

        For rank 0 alone, as it does not communicate. On every rank where no rank has the whole state: `forward` of
        a sharded model communicates, and rank 0 borrows a pipeline's other layers for the time.
        """
        if self.task.evaluate is None:
            return {}
        modes = {module: module.training for module in self.task.model.modules()}
        seed_everything(mix(self._spec.seed, self._cursor.step))
        self.task.model.eval()
        with self._boundary:
            self.is_evaluating = True
        metrics: Any = {}
        try:
            with self._whole_model() as is_here, torch.no_grad(), self._computing():
                if is_here:
                    with self._peers("in an evaluation"):
                        metrics = self.task.evaluate(self.task.model)
        finally:
            _restore_modes(modes)
            self.is_evaluating = False
        try:
            return {str(name): float(value) for name, value in metrics.items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise TaskError(f"evaluate returned {metrics!r}: return a dict of numbers by name") from error

    def _whole_model(self) -> AbstractContextManager[bool]:
        """Within it the task's model can be called; says whether this rank is one that is to."""
        return nullcontext(True) if self._replicas is None else self._replicas.whole_model()

    def state_dict(self) -> state.State:
        """The trainer's entire state. Its tensors are the live ones: copy what has to outlast the next step."""
        return state.capture(self.task, self._cursor, self._parts)

    @contextmanager
    def held_at_boundary(self) -> Iterator[state.State]:
        """The state of the last finished step, for another thread than the one that trains.

        It may come at any moment of a step, also in the middle of a forward pass: weights change only at the
        step's end, which is held off meanwhile, and what the task's code changes before that is as noted at its
        beginning. Raises `TaskError` where it was not, which only the boundary can help.
        """
        with self._boundary:
            if not self._in_step:
                yield self.state_dict()
                return
            held = state.capture(self.task, self._cursor, self._own_parts)
            held["model"] |= {n: copy for n, copy in self._noted.model().items() if n in held["model"]}
            held["parts"] |= {f"task.{name}": part for name, part in self._noted.parts().items()}
            yield held

    def load_state_dict(self, loaded: state.State) -> None:
        """Go on from a state. Raises `CheckpointError` where it does not fit the task."""
        with self._boundary:
            self._cursor = state.restore(self.task, loaded, self._parts)

    def rest_of_state(self) -> state.State:
        """The state without that of model and optimizer, of which each rank of a sharded trainer has a part."""
        return state.capture_rest(self.task, self._cursor, self._parts)

    def go_on_from(self, rest: Mapping[str, Any]) -> None:
        """Take up such a state. The task has another model; it and the optimizer have their state already."""
        with self._boundary:
            self._noted = BoundarySnapshot(self.task)
            self._cursor = state.restore_rest(self.task, rest, self._parts)

    def share_state(self, source: int) -> None:
        """Collective: bring every rank of the group to the state of rank `source`, bit for bit.

        Raises `GroupError` when a rank is gone; this rank's state is then what it was before.
        """
        if self._group is None:
            return
        own = self.state_dict() if self._rank == source else None
        shared = share(own, self._group, self._rank, source, self._device)
        if self._rank != source:
            self.load_state_dict(shared)


def _shard(task: Task) -> tuple[Shards, ShardedEngine]:
    # Imported here because sharded tensors bring SymPy with them, a second that other trainers do not need.
    from oakum_worker.parallel.sharded import ShardedEngine
    from oakum_worker.parallel.shards import Shards
    from oakum_worker.parallel.template import ModelTemplate

    shards = Shards(task, ModelTemplate(task.model))
    return shards, ShardedEngine(shards)


def _spread(task: Task, spec: TrainerSpec) -> tuple[StageState, ReplicaEngine]:
    # Imported here as other trainers do not need it.
    from oakum_worker.parallel.pipeline.arranging import Arranger, layers_of
    from oakum_worker.parallel.pipeline.replicas import ReplicaEngine
    from oakum_worker.parallel.pipeline.state import StageState

    chain, arranger = layers_of(task), Arranger(task, spec)
    warn_of_batch_norm(task.model)
    state = StageState(task, chain, arranger)
    return state, ReplicaEngine(chain, state, arranger)


def _restore_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training
