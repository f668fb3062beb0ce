"""Data parallelism: gradients of the global batch's mean loss, summed over ranks while backward still runs.

torch's DistributedDataParallel does the same for a fixed set of equal ranks. It is not used because it would
have to be built anew on all ranks in each generation, re-arranges its buckets in a collective after the first
step, in which a rank that joins later takes no part, averages over ranks instead of samples, which is wrong for
unequal shares, and needs a collective of its own for the loss and for the word that membership changes.

With n_r of the batch's n samples on rank r, each rank weights its mean loss by n_r / n. The sum over ranks,

    sum_r (n_r / n) grad mean_r = (1 / n) sum_i grad loss_i,

is the gradient of the mean over the global batch, whatever the shares.

A gradient is copied into a flat bucket when it is complete, and `p.grad` becomes a view of the bucket: that costs
less memory traffic than to accumulate into a zeroed bucket. A bucket is summed over the ranks as soon as its last
gradient is there, and buckets go out in one fixed order, so all ranks issue the same collectives. Three more
numbers ride at the end of a bucket: the weighted loss, the number of samples and the caller's signal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from oakum_worker.errors import GroupError

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_TAIL_LENGTH = 3
_EXACT_TYPES = (torch.float32, torch.float64)


class Reduced(NamedTuple):
    """What a step's collective brought beside the gradients."""

    loss: float
    """Mean loss over the global batch."""
    signal: int
    """Sum of the ranks' signals."""


@dataclass(eq=False)
class _Bucket:
    """Consecutive gradients in one flat tensor, followed in one of the buckets by the tail."""

    parameters: list[nn.Parameter]
    flat: torch.Tensor
    gradients: list[torch.Tensor]
    """Views of `flat`, shaped like the parameters."""
    waiting: set[int] = field(default_factory=set)
    """Numbers of the parameters whose gradients are not there yet."""
    spent: list[torch.Tensor] = field(default_factory=list)
    """The step's gradients as backward made them."""
    work: dist.Work | None = None

    def open(self) -> None:
        """Expect a new step's gradients."""
        self.work = None
        self.waiting = set(range(len(self.parameters)))
        self.spent.clear()

    def take(self, number: int) -> None:
        """Move a parameter's gradient into the bucket; one that took no part in the loss has zeros."""
        parameter, place = self.parameters[number], self.gradients[number]
        made = parameter.grad
        if made is None:
            place.zero_()
        elif made is not place:
            place.copy_(made.to_dense() if made.is_sparse else made)
            if not made.is_cuda:
                # Freed one by one within backward, this memory would go back to the system, which takes longer to
                # give it out again, page by page, than the copy took.
                self.spent.append(made)
        parameter.grad = place
        self.waiting.discard(number)


class GradientReducer:
    """Sums a model's gradients over the ranks of a generation; alone, it leaves them to torch.

    A step is `begin`, `backward` for each micro-batch, `finish`. `begin` and `finish` are due on every rank, also
    where the share is empty. Collectives that fail raise `GroupError`; the gradients are then worthless, and what
    is in flight is never waited for, since a broken group's works may never end.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        first_bucket_bytes: int = _FIRST_BUCKET_BYTES,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """The first bucket is smaller, so that communication starts soon after backward does."""
        self._parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        self._caps = first_bucket_bytes, bucket_bytes
        self._hooks: list[RemovableHandle] = []
        self.join(None, 1)

    def join(self, group: dist.ProcessGroup | None, world_size: int) -> None:
        """Reduce over `group` from now on; None is a generation of one rank. Does not communicate."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._group = group if world_size > 1 else None
        self._armed = False
        # Always new memory: a step that broke off may have left works behind that still write to the old.
        self._buckets: list[_Bucket] = []
        self._tail = torch.zeros(_TAIL_LENGTH, dtype=torch.float64)
        if self._group is not None:
            self._allocate()
            self._watch()

    def begin(self, num_local: int, num_global: int, signal: int) -> None:
        """Start a step in which this rank computes `num_local` of `num_global` samples."""
        self._armed, self._next = False, 0
        self._num_global = num_global
        for parameter in self._parameters:
            parameter.grad = None
        for bucket in self._buckets:
            bucket.open()
        self._tail[0] = 0
        self._tail[1] = num_local
        self._tail[2] = signal

    def backward(self, loss: torch.Tensor, num_samples: int, *, last: bool) -> None:
        """Accumulate the gradient of `loss`, the mean over `num_samples` of this rank's samples.

        During the step's `last` micro-batch buckets are sent off as they fill.
        """
        weight = num_samples / self._num_global
        self._tail[0] += loss.detach().to(self._tail.device) * weight
        self._armed = last and self._group is not None
        loss.backward(torch.full_like(loss, weight))
        self._armed = False

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is the global batch's. Raises `GroupError` when a rank is gone."""
        if self._group is None:
            return self._finish_alone()
        # Buckets with parameters that took no part in the loss, or all of them where the share was empty.
        while self._next < len(self._buckets):
            self._send_next()
        for bucket in self._buckets:
            self._wait_for(bucket)
        loss, num_samples, signal = self._tail.tolist()
        if num_samples != self._num_global:
            raise GroupError(
                f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step"
            )
        return Reduced(loss, round(signal))

    def _finish_alone(self) -> Reduced:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        loss, _, signal = self._tail.tolist()
        return Reduced(loss, round(signal))

    def _gradient_is_complete(self, bucket: _Bucket, number: int, _: torch.Tensor) -> None:
        if not self._armed:
            return
        if bucket.work is not None:
            raise RuntimeError(
                "a gradient was completed twice in one backward, after it had been sent to the other ranks: "
                "with activation checkpointing, pass use_reentrant=False"
            )
        bucket.take(number)
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        for number in list(bucket.waiting):
            bucket.take(number)
        try:
            bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
        except RuntimeError as error:
            raise GroupError(f"gradients could not be sent: {error}") from error

    def _wait_for(self, bucket: _Bucket) -> None:
        assert bucket.work is not None
        try:
            bucket.work.wait()
        except RuntimeError as error:
            raise GroupError(f"a rank was lost during a step: {error}") from error
        bucket.work = None

    def _allocate(self) -> None:
        """Lay the parameters out in buckets, in about the order in which backward completes them."""
        runs = _split(self._parameters, *self._caps)
        exact = [index for index, run in enumerate(runs) if run[0].dtype in _EXACT_TYPES]
        if not exact:
            # A half-precision tail would round the signal: give it a bucket of its own.
            runs.append([])
            exact = [len(runs) - 1]
        device = self._parameters[0].device
        for index, run in enumerate(runs):
            self._buckets.append(_lay_out(run, device, _TAIL_LENGTH if index == exact[-1] else 0))
        self._tail = self._buckets[exact[-1]].flat[-_TAIL_LENGTH:]

    def _watch(self) -> None:
        for bucket in self._buckets:
            for number, parameter in enumerate(bucket.parameters):
                on_gradient = partial(self._gradient_is_complete, bucket, number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(on_gradient))


def _split(parameters: list[nn.Parameter], first_bytes: int, other_bytes: int) -> list[list[nn.Parameter]]:
    """Runs of parameters of one type and device that fill a bucket each, in the order of their completion."""
    runs: list[list[nn.Parameter]] = []
    open_runs: dict[tuple[torch.device, torch.dtype], tuple[list[nn.Parameter], int]] = {}
    for parameter in parameters:
        kind = parameter.device, parameter.dtype
        run, size = open_runs.pop(kind, ([], 0))
        run.append(parameter)
        size += parameter.numel() * parameter.element_size()
        if size >= (other_bytes if runs else first_bytes):
            runs.append(run)
        else:
            open_runs[kind] = run, size
    return runs + [run for run, _ in open_runs.values()]


def _lay_out(parameters: list[nn.Parameter], device: torch.device, tail_length: int) -> _Bucket:
    dtype = parameters[0].dtype if parameters else torch.float32
    device = parameters[0].device if parameters else device
    flat = torch.empty(sum(p.numel() for p in parameters) + tail_length, dtype=dtype, device=device)
    gradients, offset = [], 0
    for parameter in parameters:
        # A gradient with its parameter's memory layout is accumulated and applied without a transposition.
        strides = torch.empty_like(parameter, device="meta").stride()
        gradients.append(flat.as_strided(parameter.shape, strides, offset))
        offset += parameter.numel()
    return _Bucket(parameters, flat, gradients)
