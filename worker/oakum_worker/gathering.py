"""The whole global batch within `loss`, for losses that compare samples with each other.

    from oakum_worker.gathering import gather_batch, own_rows

    def loss(model, batch):
        images, texts = model(batch)  # of this rank's samples
        logits = images @ gather_batch(texts).T / 0.07  # against all texts of the global batch
        return cross_entropy(logits, own_rows(texts))

    return Task(..., loss=loss, gathers=True)

Each rank r computes the mean loss of its own n_r samples, compared with all n samples of the batch, and Oakum
weights this mean by n_r / n. A row's gradient is the sum of its gradients on all ranks, so the loss and its
gradient are those of one process with the whole batch. They are so, too, where each rank computes one loss of the
whole gathered batch, as for Dice or a covariance, because the weights n_r / n add up to 1.

Gathering is a collective, forward and backward, which every rank has to call equally often. A rank without a
sample computes the batch's first sample and adds nothing. Therefore a rank has to compute its share at once. In
the loop over a session every batch can be gathered; where a rank is lost meanwhile, the loop's body goes on with
rows of this rank alone, up to the step, which is not taken."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from oakum_worker.errors import TaskError
from oakum_worker.parallel.chunks import Chunk, share_of
from oakum_worker.parallel.lost_peers import LostInPasses, collective_of_passes
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.waiting import all_gather, all_reduce, refuse_cut
from oakum_worker.spec import TrainerSpec

if TYPE_CHECKING:
    from oakum_worker.task import Task

_MOST_DIMENSIONS = 8
_WHEN = "while a batch was gathered"


@dataclass
class Share:
    """This rank's share of a global batch."""

    group: dist.ProcessGroup | None
    counts: tuple[int, ...]
    """Number of samples that each rank adds to the batch, by rank."""
    rank: int
    positions: range
    """Positions in the global batch that this rank computes: its own samples, or the first if it has no sample."""
    lost: LostInPasses | None = None
    """Notes a lost rank where the passes cannot be ended early; otherwise they raise `GroupError`."""
    was_gathered: bool = False
    """Whether `gather_batch` was called."""

    @property
    def own(self) -> range:
        """The rows that this rank adds to what is gathered."""
        before = sum(self.counts[: self.rank])
        return range(before, before + self.counts[self.rank])


@dataclass(frozen=True)
class _Undeclared:
    """Takes the place of a share where `gather_batch` has to raise: without `gathers=True`, or under
    `no_gathering`."""

    text: str = (
        "loss gathers the batch and the task does not say so: return Task(..., gathers=True), so that every "
        "rank takes part (not for pipelines)"
    )


_PRESENT: ContextVar[Share | _Undeclared | None] = ContextVar("share of the global batch", default=None)


def gather_batch(values: torch.Tensor) -> torch.Tensor:
    """The `values` of all samples of the global batch, in the batch's order: shape (samples, ...). Differentiable.

    `values` has one row for each sample of this rank, and rows have one shape on all ranks. Returns `values`
    itself where the batch is not spread over ranks, as in `evaluate`. Raises `TaskError` where the task did not
    set `gathers=True`, or `values` has another number of rows, or other shapes on some rank. Raises `GroupError`
    when a rank is gone, except in the loop over a session.
    """
    share = _share(values)
    if share is not None:
        share.was_gathered = True
    if share is None or share.group is None:
        return values
    gathered: torch.Tensor = _Gathered.apply(values, share)
    return gathered


def own_rows(values: torch.Tensor) -> torch.Tensor:
    """The numbers of the rows of `gather_batch(values)` that belong to this rank's samples: int64, shape (samples
    of the rank,)."""
    share = _share(values)
    start = 0 if share is None else share.positions.start
    return torch.arange(start, start + len(values), device=values.device)


class Gathering:
    """Tells `gather_batch` which samples of the batch each rank has; owned by the training loop."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task gathers and the spec lets a rank compute its share in several
        parts."""
        self._is_declared = task.gathers
        self._on_cpu = next(task.model.parameters()).device.type == "cpu"
        self._group: dist.ProcessGroup | None = None
        self._rank = 0
        if task.gathers:
            _refuse_parts(spec)

    def join(self, group: dist.ProcessGroup | None, rank: int, subgroups: Subgroups | None) -> None:
        """Gather over `group` from now on; None stands for a rank alone.

        With `subgroups`, a task that gathers on CPUs gets a subgroup with its own connections, so that gradients
        in transit do not delay it. Forming this subgroup is a collective. Raises `GroupError` when a rank is gone.
        """
        self._group, self._rank = group, rank
        if group is not None and subgroups is not None and self._is_declared and self._on_cpu:
            self._group = subgroups.form("gathering", range(group.size()))

    @contextmanager
    def of(self, num_samples: int, chunk: Chunk) -> Iterator[None]:
        """Context in which `gather_batch` knows the global batch of `num_samples`; this rank computes `chunk`."""
        token = _PRESENT.set(self._share_of(num_samples, chunk) if self._is_declared else _Undeclared())
        try:
            yield
        finally:
            _PRESENT.reset(token)

    @contextmanager
    def by_hand(self, num_samples: int, chunk: Chunk, lost: LostInPasses) -> Iterator[Share]:
        """The same for passes of a caller that may gather each batch, and that notes in `lost` that a rank was
        lost. Yields the share."""
        share = self._share_of(num_samples, chunk)
        share.lost = lost
        token = _PRESENT.set(share)
        try:
            yield share
        finally:
            _PRESENT.reset(token)

    def _share_of(self, num_samples: int, chunk: Chunk) -> Share:
        size = 1 if self._group is None else self._group.size()
        counts = tuple(len(share_of(num_samples, rank, size)) for rank in range(size))
        return Share(self._group, counts, self._rank, chunk.positions)


@contextmanager
def alone(positions: range) -> Iterator[Share]:
    """Context in which the global batch consists of the samples at these positions alone, whose rows count from 0.
    Yields them as a share."""
    share = Share(None, (len(positions),), 0, range(len(positions)))
    token = _PRESENT.set(share)
    try:
        yield share
    finally:
        _PRESENT.reset(token)


@contextmanager
def no_gathering(text: str | None = None) -> Iterator[None]:
    """Context in which `gather_batch` raises `TaskError`, for micro-batches that ranks compute independently.
    `text` says why, and what to do."""
    token = _PRESENT.set(_Undeclared() if text is None else _Undeclared(text))
    try:
        yield
    finally:
        _PRESENT.reset(token)


def _refuse_parts(spec: TrainerSpec) -> None:
    largest = max([spec.global_batch, *(samples for _, samples in spec.batch_schedule)])
    if spec.adaptive_batch is not None:
        instead = "leave it out, the gradient's noise is known for means over samples"
        raise refused_gathering("adaptive_batch", instead)
    if spec.micro_batch is not None and spec.micro_batch < largest:
        instead = "leave it out, and recompute activations to save memory"
        raise refused_gathering(f"micro_batch: {spec.micro_batch}", instead)


def refused_gathering(option: str, instead: str) -> TaskError:
    """The `TaskError` for a task that gathers although an option of the spec lets a rank compute its share in
    several parts. The message names `option` and tells to do what `instead` says."""
    return TaskError(
        f"the task gathers batches and the spec has {option}: samples that are compared with each other are "
        f"computed at once on each rank; {instead}"
    )


def _share(values: torch.Tensor) -> Share | None:
    present = _PRESENT.get()
    if isinstance(present, _Undeclared):
        raise TaskError(present.text)
    if present is not None and (not values.ndim or len(values) != len(present.positions)):
        raise TaskError(
            f"a tensor of shape {tuple(values.shape)} is to be gathered and {len(present.positions)} samples are "
            "computed: give one row for each sample, in their order"
        )
    return present


class _Gathered(torch.autograd.Function):
    """Autograd function that gathers the rows of all ranks. In its backward pass, a row's gradients are summed
    over the ranks, on the rank to which the row belongs. Both passes are collectives."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, share: Share) -> torch.Tensor:
        ctx.share, ctx.num_rows, ctx.dtype = share, len(values), values.dtype
        assert share.group is not None
        padded = values.new_zeros((max(share.counts), *values.shape[1:]))
        count = share.counts[share.rank]
        padded[:count] = values[:count]
        parts: list[torch.Tensor] = [padded.reshape(-1).view(torch.uint8)] * len(share.counts)
        with collective_of_passes(_WHEN, share.lost) as is_whole:
            if is_whole:
                _refuse_other_shapes(values, share.group)
                # Sent as bytes, because the backends do not take every dtype.
                parts = all_gather(parts[share.rank], share.group)
        rows = [
            part.view(values.dtype).view(padded.shape)[:count]
            for part, count in zip(parts, share.counts, strict=True)
        ]
        return torch.cat(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        share: Share = ctx.share
        assert share.group is not None
        summed = gradients[0].to(torch.promote_types(ctx.dtype, torch.float32), copy=True).contiguous()
        with collective_of_passes(_WHEN, share.lost) as is_whole:
            if is_whole:
                all_reduce(torch.view_as_real(summed) if summed.is_complex() else summed, share.group)
        inward = summed.new_zeros((ctx.num_rows, *summed.shape[1:]))
        inward[: len(share.own)] = summed[share.own.start : share.own.stop]
        return inward.to(ctx.dtype), None


def _refuse_other_shapes(values: torch.Tensor, group: dist.ProcessGroup) -> None:
    """Collective. Raises `TaskError` on all ranks where their rows differ in shape or element size.

    A collective of tensors of different sizes may end the process.
    """
    described = [values.ndim, values.element_size(), *values.shape[1:]]
    if len(described) > _MOST_DIMENSIONS + 1:
        raise TaskError(f"a tensor of {values.ndim} dimensions is to be gathered: flatten it to at most 8")
    own = torch.zeros(_MOST_DIMENSIONS + 1, dtype=torch.int64, device=values.device)
    own[: len(described)] = torch.tensor(described)
    descriptions = {tuple(one.tolist()) for one in all_gather(own, group)}
    refuse_cut(values.device)
    if len(descriptions) > 1:
        shapes = ", ".join(sorted({str(one[2 : 1 + one[0]]) for one in descriptions}))
        raise TaskError(
            f"ranks gather rows of different shapes or types ({shapes}): pad them to one length, or gather what "
            "does not depend on it"
        )
