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
gradient is there, and buckets go out in one fixed order, so all ranks issue the same collectives. A few more
numbers ride at the end of the last bucket: the weighted loss, the number of samples, the caller's signal and flag,
and, if asked for, what the gradient noise is estimated from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from oakum_worker.errors import GroupError
from oakum_worker.parallel.buckets import Bucket, lay_out, summed_in
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.torus import TorusAllReduce, grid
from oakum_worker.spec_options import AllReduce

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_LOSS, _SAMPLES, _SIGNAL, _FLAG, _PARTS_SQR, _NUM_PARTS, _CARRIED, _NUM_CARRIED = range(8)
_TAIL_LENGTH = 4
_TAIL_LENGTH_WITH_NOISE = 8


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
    """What `begin` was given to carry, the mean over the ranks that gave something: the same bits on all."""


class Reduced(NamedTuple):
    """What a step's collective brought beside the gradients, the same on every rank."""

    loss: float
    """Mean loss over the global batch."""
    signal: int
    """Sum of the ranks' signals."""
    flag: int = 0
    """Sum of the ranks' flags."""
    norms: GradientNorms | None = None
    """None unless the reducer measures noise."""


class GradientReducer:
    """Sums a model's gradients over the ranks of a generation; alone, it leaves them to torch.

    A step is `begin`, `backward` for each micro-batch, `finish`. `begin` and `finish` are due on every rank, also
    where the share is empty. Collectives that fail raise `GroupError`; the gradients are then worthless, and what
    is in flight is never waited for, since a broken group's works may never end.

    `finish` alone waits for the device, once.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        measure_noise: bool = False,
        all_reduce: AllReduce = "ring",
        ranks_per_node: int = 1,
        first_bucket_bytes: int = _FIRST_BUCKET_BYTES,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """The first bucket is smaller, so that communication starts soon after backward does.

        To `measure_noise` takes the norm of every micro-batch's gradient, and no collective. `ranks_per_node`
        shapes the torus.
        """
        self._parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        self._measure_noise = measure_noise
        self._tail_length = _TAIL_LENGTH_WITH_NOISE if measure_noise else _TAIL_LENGTH
        self._all_reduce, self._ranks_per_node = all_reduce, ranks_per_node
        self._torus: TorusAllReduce | None = None
        self._caps = first_bucket_bytes, bucket_bytes
        self._hooks: list[RemovableHandle] = []
        self.join(None, 1)

    def join(
        self, group: dist.ProcessGroup | None, world_size: int, *, subgroups: Subgroups | None = None
    ) -> None:
        """Reduce over `group` from now on; None is a generation of one rank.

        Does not communicate, save for forming a torus's rows and columns out of `subgroups`, which raises
        `GroupError` when a rank is gone. Without these, and where ranks make no grid, the all-reduce is plain.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._group = group if world_size > 1 else None
        self._form_torus(world_size, subgroups)
        self._armed = False
        self._norms: list[torch.Tensor] = []
        # Always new memory: a step that broke off may have left works behind that still write to the old.
        self._buckets: list[Bucket] = []
        if self._group is not None or any(p.dtype != summed_in(p) for p in self._parameters):
            multiple_of = self._torus.row_length if self._torus is not None else 1
            self._buckets, self._tail = lay_out(self._parameters, *self._caps, self._tail_length, multiple_of)
        else:
            first = self._parameters[0]
            dtype = torch.float32 if first.is_complex() else summed_in(first)
            self._tail = torch.zeros(self._tail_length, dtype=dtype, device=first.device)
        self._watch()

    def begin(
        self,
        num_local: int,
        num_global: int,
        signal: int,
        flag: int = 0,
        *,
        carried: torch.Tensor | float | None = None,
    ) -> None:
        """Start a step in which this rank computes `num_local` of `num_global` samples.

        The sums over the ranks of `signal` and `flag` have to stay below 2**24. `carried` is for a reducer that
        measures noise.
        """
        self._armed, self._next = False, 0
        self._num_global = num_global
        self._norms.clear()
        for parameter in self._parameters:
            parameter.grad = None
        for bucket in self._buckets:
            bucket.open()
        # One copy instead of a write for each number, which would be felt in steps of a few milliseconds.
        numbers = [0.0, num_local, signal, flag, 0.0, 0.0, 0.0, float(carried is not None)][: len(self._tail)]
        self._tail.copy_(torch.tensor(numbers, dtype=self._tail.dtype))
        if self._measure_noise and carried is not None:
            self._tail[_CARRIED] = carried

    def backward(self, loss: torch.Tensor, num_samples: int, *, last: bool, scale: float = 1.0) -> None:
        """Accumulate `scale` times the gradient of `loss`, the mean over `num_samples` of this rank's samples.

        During the step's `last` micro-batch buckets are sent off as they fill.
        """
        self._weight = num_samples / self._num_global
        self._tail[_LOSS].add_(loss.detach().to(self._tail.device), alpha=self._weight)
        self._armed = last and bool(self._buckets)
        loss.backward(torch.full_like(loss, self._weight * scale))
        self._armed = False
        self._note_part()

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is the global batch's. Raises `GroupError` when a rank is gone."""
        # Buckets with parameters that took no part in the loss, or all of them where the share was empty.
        while self._next < len(self._buckets):
            self._send_next()
        for bucket in self._buckets:
            self._wait_for(bucket)
            bucket.hand_out()
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        total_sqr = self._total_sqr() if self._measure_noise else None
        loss, num_samples, signal, flag, *noise = self._tail.tolist()
        if num_samples != self._num_global and self._group is not None:
            raise GroupError(
                f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step"
            )
        if total_sqr is None:
            return Reduced(loss, round(signal), round(flag))
        parts_sqr, num_parts, carried, num_carried = noise
        norms = GradientNorms(
            parts_sqr, round(num_parts), total_sqr, carried / num_carried if num_carried else None
        )
        return Reduced(loss, round(signal), round(flag), norms)

    def _gradient_is_complete(self, bucket: Bucket, number: int, _: torch.Tensor) -> None:
        if not self._armed:
            if bucket.widens(number):
                bucket.gather(number)
            return
        if bucket.work is not None:
            raise RuntimeError(
                "a gradient was completed twice in one backward, after it had been sent to the other ranks: "
                "with activation checkpointing, pass use_reentrant=False"
            )
        bucket.complete(number)
        while self._next < len(self._buckets) and not self._buckets[self._next].waiting:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        for number in list(bucket.waiting):
            bucket.complete(number)
        if self._next == len(self._buckets):
            self._note_part()  # The tail leaves with this bucket.
        if self._group is None:
            return
        try:
            if self._torus is not None:
                bucket.work = self._torus.start(bucket.flat)
            else:
                bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
        except RuntimeError as error:
            raise GroupError(f"gradients could not be sent: {error}") from error

    def _wait_for(self, bucket: Bucket) -> None:
        if bucket.work is None:
            return
        try:
            bucket.work.wait()
        except RuntimeError as error:
            raise GroupError(f"a rank was lost during a step: {error}") from error
        bucket.work = None

    def _form_torus(self, world_size: int, subgroups: Subgroups | None) -> None:
        if self._torus is not None:
            self._torus.close()
            self._torus = None
        if self._all_reduce != "torus" or self._group is None or subgroups is None:
            return
        shape = grid(world_size, self._ranks_per_node)
        if not shape.is_plain:
            self._torus = TorusAllReduce.form(shape, self._group.rank(), subgroups)

    def _watch(self) -> None:
        for bucket in self._buckets:
            for number, parameter in enumerate(bucket.parameters):
                on_gradient = partial(self._gradient_is_complete, bucket, number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(on_gradient))
        if self._measure_noise:
            # These see a micro-batch's gradient before it is added to what earlier ones left.
            self._hooks += [parameter.register_hook(self._note_norm) for parameter in self._parameters]

    def _note_norm(self, gradient: torch.Tensor) -> None:
        self._norms.append(self._norm(gradient))

    def _note_part(self) -> None:
        """Add the micro-batch whose gradient is complete; its weighted gradient is (n_i / n) g_i."""
        if not self._norms:
            return
        self._tail[_PARTS_SQR] += _sum_of_squares(self._norms) / self._weight
        self._tail[_NUM_PARTS] += 1
        self._norms.clear()

    def _total_sqr(self) -> torch.Tensor:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        return _sum_of_squares(self._norm(gradient) for gradient in gradients)

    def _norm(self, gradient: torch.Tensor) -> torch.Tensor:
        values = gradient.coalesce().values() if gradient.is_sparse else gradient.detach()
        norm = torch.linalg.vector_norm(values, dtype=summed_in(values))
        return norm.to(self._tail.device, self._tail.dtype)


def _sum_of_squares(norms: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(norms)).square().sum()
