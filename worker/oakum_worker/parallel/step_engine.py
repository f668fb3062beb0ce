"""The seam between the training loop and the strategies that spread a step over ranks.

The loop gives a `StepEngine` the step's `GlobalBatch` and a function that tells this rank's `StepVotes`. The
engine computes this rank's part, adds gradients up over the ranks, and leaves in every `p.grad` the part of the
global batch's gradient that belongs to this rank. The loop does not know which parts of the batch, the model or
the state a rank has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.distributed as dist

from oakum_worker.losses import Loss, Weight
from oakum_worker.parallel.chunks import Chunk
from oakum_worker.parallel.gradient_look import GradientLook
from oakum_worker.parallel.subgroups import Subgroups

if TYPE_CHECKING:
    from oakum_worker.parallel.pipeline.engine import CountedMicroBatches

_FAULT = 1 << 12
"""What a fault adds to the number that checkpoint votes are counted in: 4,095 ranks' sum stays below 2**24."""


class StepVotes(NamedTuple):
    """What a rank tells all others along with a step's gradients; after the step every rank has the sums over the
    ranks.

    Engines send two numbers, since one more would move all others in a collective and change the last bits of
    losses. Both sums have to stay below 2**24, which float32 still counts exactly.
    """

    signal: int = 0
    """A number of the caller's; rank 0 sends the number of the generation to switch to."""
    checkpoint: int = 0
    """1 from a rank that asks for a durable checkpoint."""
    faults: int = 0
    """1 from a rank that has found a loss, gradient or weight that is not finite."""

    @property
    def numbers(self) -> tuple[int, int]:
        """The votes packed into the two numbers that engines send and sum over the ranks."""
        return self.signal, self.checkpoint + _FAULT * self.faults

    def write(self, into: torch.Tensor, signal_at: int, flag_at: int) -> None:
        """Write the two numbers into a tensor of zeros, in which they are summed over the ranks."""
        for place, number in zip((signal_at, flag_at), self.numbers, strict=True):
            if number:  # in most steps there is nothing to write
                into[place].fill_(number)  # unlike a copy from the host, not waited for on a GPU

    @classmethod
    def of(cls, signal: float, flag: float) -> StepVotes:
        """Rebuild the votes from the two numbers that `numbers` gives, of one rank or summed over ranks."""
        faults, checkpoint = divmod(round(flag), _FAULT)
        return cls(round(signal), checkpoint, faults)


class StateVotes(NamedTuple):
    """What a rank's keeper of a split state tells the others in each step; after the step every rank has the sums
    over the ranks."""

    copies_arrived: int = 0
    """1 from a rank that has its neighbour's copy."""
    shares_written: int = 0
    """1 from a rank whose share of the durable checkpoint has reached the disk since its last vote."""
    shares_failed: int = 0
    """1 from a rank whose share of the durable checkpoint could not be written."""
    closing: int = 0
    """1 from a rank that has been told to close."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> StateVotes:
        """The votes from the sums that a collective brings, in the order of the fields; each is rounded to an
        integer."""
        return cls(*(round(number) for number in numbers))


class GradientNorms(NamedTuple):
    """Squared norms of a step's gradients, from which its noise is estimated.

    The parts are the gradients g_i of each rank's micro-batches, n_i of the batch's n samples each. Parts may be
    unequal, as their squares are averaged with the samples' weights. For a true gradient G and a variance V of one
    sample's gradient (the trace of its covariance), E|g_i|^2 = |G|^2 + V / n_i, so over k parts

        E sum_i (n_i / n) |g_i|^2 = |G|^2 + sum_i (n_i / n) (V / n_i) = |G|^2 + k V / n,

    exactly what k equal parts of n / k samples would give. With E|g|^2 = |G|^2 + V / n for the whole batch's
    gradient, both |G|^2 and V follow without bias, whatever the shares; only their spread depends on them.
    (Samples of an epoch are drawn without replacement, which lowers V by less than n / data set size.)

    With loss scaling all three are too large by the scale's square.
    """

    parts_sqr: float
    """sum_i (n_i / n) |g_i|^2."""
    num_parts: int
    total_sqr: torch.Tensor
    """|g|^2 of the summed gradient as this rank found it, shape (). On other hardware the last bits may differ."""
    carried: float | None
    """The mean of what the batches carried, over the ranks that gave something: the same bits on all ranks."""


class Reduced(NamedTuple):
    """The result of a step beside the gradients, equal on every rank."""

    loss: float
    """Mean loss over the global batch, or its totals' over their weights."""
    votes: StepVotes
    """Sums of the ranks' votes."""
    norms: GradientNorms | None = None
    """None unless the engine measures noise."""


class GlobalBatch(Protocol):
    """The global batch of one step. An engine asks it for the micro-batches that its rank computes, and for their
    losses."""

    @property
    def num_samples(self) -> int:
        """Samples of the global batch, at least 1."""

    @property
    def numbers(self) -> list[int]:
        """The samples' numbers in the data set, by their position in the batch."""

    @property
    def loss_scale(self) -> float:
        """What gradients have to be multiplied with: a power of 2 for float16, else 1."""

    @property
    def carried(self) -> torch.Tensor | float | None:
        """A number for `GradientNorms.carried`; None where this rank has none to give."""

    def chunks(self, number: int, count: int, *, together: bool) -> list[Chunk]:
        """The micro-batches of share `number` when the batch is divided into `count` shares.

        `together` gives every share the same number of micro-batches, which engines need whose passes communicate.
        A micro-batch that is left without a sample then has the batch's first sample and counts nothing.
        """

    def loss(self, chunk: Chunk) -> AbstractContextManager[Loss]:
        """Context that yields the task's loss of a micro-batch, computed by the task's model. The loss's backward
        pass has to run within the context.

        Raises `TaskError` where the task returns no loss, and whatever the task's code raises.
        """

    def waiting(self) -> AbstractContextManager[None]:
        """Context in which this rank only waits for others; its time counts as waiting where the engine
        `tells_waiting`."""

    def in_stages(self, chunks: Sequence[Chunk]) -> AbstractContextManager[CountedMicroBatches]:
        """Context that yields the given micro-batches for a task with a chain of layers, so that different ranks
        can compute different layers."""


Curve = tuple[tuple[int, float], ...]
"""(nodes, samples per second), rising in both."""


class StepEngine(Protocol):
    """Interface by which the training loop computes one rank's part of each step, whatever the strategy.

    A step is `compute`, then `finish`, on every rank of the generation, also where its share is empty. Collectives
    that fail raise `GroupError`; gradients are then worthless, and the next call has to be `join`.
    """

    passes_communicate: bool
    """Whether ranks wait for each other within forward and backward passes, and within optimizer steps."""
    tells_waiting: bool = False
    """Whether an engine whose passes communicate waits for other ranks only within `GlobalBatch.waiting` and
    `finish`."""
    look: GradientLook | None = None
    """Told, before the passes of a step, which parameters this rank's passes should give a gradient; nothing where
    this rank computes no sample. None in all steps but the first."""

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, rank: int, subgroups: Subgroups | None
    ) -> None:
        """Work as `rank` of `world_size` over `group` from now on; None is a generation of one rank.

        `subgroups` forms groups of some of the ranks. Without it an engine that could do with such groups does
        without.
        """

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """Compute forward and backward passes of this rank's part of the batch, and begin to sum gradients and
        votes over the ranks.

        `votes` returns this rank's votes; called once, when they are sent. The later that is, the sooner a node
        that is wanted back is let go: what rank 0 hears before then comes to pass at this step's end.
        """

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is this rank's part of the gradient of the global batch's mean loss. Returns
        the mean loss and the sums of the ranks' votes."""

    @property
    def grad_norm(self) -> Callable[[], torch.Tensor] | None:
        """A function that returns the norm of the whole gradient, shape (); all ranks have to call it together.
        None where torch's own functions find that norm."""
        return None

    @property
    def predicted_curve(self) -> Curve:
        """(nodes, samples per second) as the strategy predicts them; empty where it predicts nothing. May take
        seconds."""
        return ()

    @property
    def gain_together(self) -> float | None:
        """How many times as fast ranks of one fragment are predicted to be as so many on different nodes; None
        where the strategy predicts nothing, or cannot tell yet. May take seconds."""
        return None

    @property
    def has_model_on_each_rank(self) -> bool:
        """Whether every rank that enters `whole_model` can call the task's model there, not only rank 0."""
        return True

    def evaluates_on(self, rank: int) -> bool:
        """Whether `rank` has to enter `whole_model` when the task is evaluated; by default only rank 0."""
        return rank == 0

    @contextmanager
    def whole_model(self) -> Iterator[bool]:
        """Context for an evaluation. Yields whether this rank can call the task's model within it; the other ranks
        only help."""
        yield True


class SplitStateEngine(StepEngine, Protocol):
    """A `StepEngine` for a state that is split over the ranks. In each step it also sums the votes of the ranks'
    keepers."""

    group: dist.ProcessGroup | None
    """Of all ranks of the generation; None for a rank alone."""
    votes: Callable[[], StateVotes]
    """Returns this rank's votes; called once in each step."""
    counted: StateVotes
    """Sums of the ranks' votes in the last finished step."""
    steps: int
    """Steps whose gradients were complete. Weights may have changed since if the loop has counted fewer."""


class PassEngine(Protocol):
    """An engine that computes whole micro-batches: the loop calls `backward` for one after the other."""

    def backward(
        self, loss: torch.Tensor, num_samples: int, *, last: bool, scale: float, weight: Weight | None
    ) -> None:
        """Add the gradient of a micro-batch's loss, multiplied by `scale`, to this rank's gradients. `loss` is the
        mean over `num_samples` samples, or a total if `weight` is given; `last` marks the step's last
        micro-batch."""


def compute_passes(engine: PassEngine, batch: GlobalBatch, chunks: Sequence[Chunk]) -> None:
    """Compute forward and backward passes of whole micro-batches, one after the other."""
    for chunk in chunks:
        with batch.loss(chunk) as loss:
            last = chunk is chunks[-1]
            engine.backward(loss.value, chunk.num_counted, last=last, scale=batch.loss_scale, weight=loss.weight)
