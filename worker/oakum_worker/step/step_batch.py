"""The global batch of one step, in the form in which the training loop passes it to an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from oakum_worker.errors import TaskError
from oakum_worker.gathering import Gathering, no_gathering
from oakum_worker.losses import Loss
from oakum_worker.parallel.chunks import Chunk, equal_chunks, own_chunks
from oakum_worker.parallel.normalisation import Synchronisation
from oakum_worker.randomness.batch_dims import BatchDims
from oakum_worker.spec import TrainerSpec
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.batch_sizes import BatchSizes
from oakum_worker.step.forward_pass import ForwardPass
from oakum_worker.step.read_ahead import ReadAhead, read_in_order
from oakum_worker.step.reading_order import ReadingOrder, Share
from oakum_worker.step.replica_batch import ReplicaBatch
from oakum_worker.step.sampler import ElasticSampler
from oakum_worker.step.step_times import StepTimes
from oakum_worker.task import Task

_NO_NOISE_OF_TOTALS = (
    "adaptive_batch is asked for and the loss returned a total and its weight: the gradient's noise is known for "
    "means over samples; return the mean, or leave out adaptive_batch"
)


@dataclass(frozen=True)
class LossParts:
    """The objects with which a training loop computes the losses of all its steps."""

    task: Task
    spec: TrainerSpec
    forward: ForwardPass
    sampler: ElasticSampler
    norms: Synchronisation
    gathering: Gathering
    measures_noise: bool
    times: StepTimes
    reading_order: ReadingOrder | None
    """Learns what is read in each step, where samples are read ahead."""

    def divide(self, num_samples: int, share: Share) -> list[Chunk]:
        """The micro-batches of a share of a global batch of `num_samples`."""
        number, shares, together = share
        size = self.spec.micro_batch
        if together or self.norms.is_used or self.task.gathers:
            return equal_chunks(num_samples, number, shares, size)
        if self.measures_noise and shares == 1:
            half = max(-(-num_samples // 2), 1)  # the noise is estimated from two parts of a batch
            size = min(size or half, half)
        return own_chunks(num_samples, number, shares, size)


def loss_parts(
    task: Task,
    spec: TrainerSpec,
    batches: BatchSizes,
    norms: Synchronisation,
    gathering: Gathering,
    precision: Callable[[], AbstractContextManager[Any]],
    *,
    readers: ReadAhead | None,
    always_draws: bool,
    dims: BatchDims | None,
) -> LossParts:
    """The objects that compute the losses of a trainer's steps. `readers` read samples ahead; the other arguments
    are those of `ForwardPass`."""
    parts: LossParts
    sampler = ElasticSampler(len(task.dataset), batches.at, spec.seed)
    order = ReadingOrder(sampler, spec.epochs, lambda samples, share: parts.divide(samples, share))
    times = StepTimes()
    forward = ForwardPass(
        task,
        spec,
        precision,
        times,
        read_ahead=None if readers is None else partial(read_in_order, readers, order),
        always_draws=always_draws,
        dims=dims,
    )
    noise, noted = batches.measures_noise, None if readers is None else order
    parts = LossParts(task, spec, forward, sampler, norms, gathering, noise, times, noted)
    return parts


@dataclass(frozen=True)
class StepBatch:
    """The `GlobalBatch` of one step: tells engines their micro-batches and computes their losses."""

    parts: LossParts
    cursor: Cursor
    num_samples: int
    loss_scale: float
    carried: torch.Tensor | float | None

    @property
    def numbers(self) -> list[int]:
        """The samples' numbers in the data set, by their position in the batch."""
        return self.parts.sampler.indices(self.cursor, range(self.num_samples))

    def chunks(self, number: int, count: int, *, together: bool) -> list[Chunk]:
        """The micro-batches of share `number` when the batch is divided into `count` shares. Every share has the
        same number of them if `together`, or if the task's loss or normalisation layers communicate within their
        passes."""
        share = Share(number, count, together)
        chunks = self.parts.divide(self.num_samples, share)
        if self.parts.reading_order is not None:
            self.parts.reading_order.note(self.cursor, share, chunks)
        return chunks

    @contextmanager
    def loss(self, chunk: Chunk) -> Iterator[Loss]:
        """Context that yields the task's loss of a micro-batch; its backward pass has to run within the context.
        Raises `TaskError` where the task returns no loss, or a total while noise is measured, and whatever the
        task's code raises."""
        parts = self.parts
        parts.norms.counts = chunk.num_counted > 0
        indices = parts.sampler.indices(self.cursor, chunk.positions)
        with (
            parts.gathering.of(self.num_samples, chunk),
            parts.forward.loss(self.cursor, chunk.positions, indices) as loss,
        ):
            if loss.weight is not None and parts.measures_noise:
                raise TaskError(_NO_NOISE_OF_TOTALS)
            yield loss

    def waiting(self) -> AbstractContextManager[None]:
        """Context in which this rank only waits for others."""
        return self.parts.times.waiting()

    @contextmanager
    def in_stages(self, chunks: Sequence[Chunk]) -> Iterator[ReplicaBatch]:
        """Context that yields the micro-batches `chunks` for computing layer by layer. The task has to have a
        chain. Within it `gather_batch` raises `TaskError`."""
        parts = self.parts
        assert parts.task.chain is not None
        with no_gathering():
            yield ReplicaBatch(
                parts.forward, parts.task.chain, parts.sampler, self.cursor, chunks, self.num_samples
            )
