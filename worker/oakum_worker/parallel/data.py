"""Data parallelism: gradients of the global batch's mean loss, summed over ranks while backward still runs.

torch's DistributedDataParallel sums gradients so for a fixed set of equal ranks. It is not used for four reasons:
all ranks would have to build it again in each generation; after the first step it rearranges its buckets in a
collective that a rank that joins later misses; it averages over ranks instead of samples, which is wrong for
unequal shares; and the loss and the signal that membership changes would need another collective.

With n_r of the batch's n samples on rank r, each rank weights its mean loss by n_r / n. The sum over ranks,

    sum_r (n_r / n) grad mean_r = (1 / n) sum_i grad loss_i,

is the gradient of the mean over the global batch, whatever the shares. Totals with weights w_r
(`oakum_worker.losses`) are multiplied by 1 / n before they are added up, and the sum by n / sum_r w_r at the end;
the last bucket brings the sum of the weights.

A gradient is copied into a flat bucket when it is complete, and `p.grad` becomes a view of the bucket: that costs
less memory traffic than to accumulate into a zeroed bucket. A bucket is summed over the ranks as soon as its last
gradient is complete, and buckets are sent in one fixed order, so all ranks issue the same collectives. The end of
the last bucket carries more numbers: the weighted loss, the number of samples (combined with the weights of
totals), the caller's votes and, if asked for, the numbers from which the gradient noise is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from oakum_worker.errors import GroupError, SharesMissingError, TaskError
from oakum_worker.losses import NOT_ALWAYS_A_TOTAL, Weight, to_mean
from oakum_worker.parallel.buckets import Bucket, lay_out, multiply_gradients, summed_in, weak_hook
from oakum_worker.parallel.step_engine import (
    GlobalBatch,
    GradientNorms,
    Reduced,
    StepEngine,
    StepVotes,
    compute_passes,
)
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.torus import TorusAllReduce, grid
from oakum_worker.parallel.waiting import refuse_void, wait_for
from oakum_worker.spec_options import AllReduce

_FIRST_BUCKET_BYTES = 1 << 20
_BUCKET_BYTES = 25 << 20
_LOSS, _SAMPLES, _SIGNAL, _FLAG, _PARTS_SQR, _NUM_PARTS, _CARRIED, _NUM_CARRIED = range(8)
_TAIL_LENGTH = 4
_TAIL_LENGTH_WITH_NOISE = 8


class GradientReducer(StepEngine):
    """Sums a model's gradients over the ranks of a generation; a rank alone leaves gradients to torch.

    `compute` calls `begin` once and `backward` for each micro-batch. Every rank has to call `begin` and `finish`,
    also if its share is empty. Collectives that fail raise `GroupError`. The gradients are then invalid, and no
    collective in flight is waited for, since the collectives of a broken group may never end.

    Only `finish` waits for the device, once.
    """

    passes_communicate = False

    def __init__(
        self,
        model: nn.Module,
        *,
        measure_noise: bool = False,
        all_reduce: AllReduce = "ring",
        first_bucket_bytes: int = _FIRST_BUCKET_BYTES,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """`first_bucket_bytes` is smaller than `bucket_bytes`, so that communication starts soon after backward
        does.

        `measure_noise` computes the norm of every micro-batch's gradient and adds no collective.
        """
        self._parameters = [p for p in reversed(list(model.parameters())) if p.requires_grad]
        self._measure_noise = measure_noise
        self._tail_length = _TAIL_LENGTH_WITH_NOISE if measure_noise else _TAIL_LENGTH
        self._all_reduce = all_reduce
        self._torus: TorusAllReduce | None = None
        self._is_mean: bool | None = None
        """Whether the last loss on this rank was a mean over samples; None before the first."""
        self._caps = first_bucket_bytes, bucket_bytes
        self._hooks: list[RemovableHandle] = []
        self.join(None, 1)

    def join(
        self,
        group: dist.ProcessGroup | None,
        world_size: int,
        *,
        rank: int = 0,
        subgroups: Subgroups | None = None,
    ) -> None:
        """Sum gradients over `group` from now on; a `world_size` of 1, with `group` None, is a rank alone. `rank`
        selects the share of the batch that `compute` takes.

        Communicates only to form a torus's rows and columns with `subgroups`, and then raises `GroupError` if a
        rank is gone. Without `subgroups`, or if the ranks form no grid, gradients are summed by a plain
        all-reduce.
        """
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._group = group if world_size > 1 else None
        self._rank, self._world_size = rank, world_size
        self._form_torus(world_size, subgroups)
        self._armed = False
        self._norms: list[torch.Tensor] = []
        # Always new memory: collectives of an aborted step may still write to the old buckets.
        self._buckets: list[Bucket] = []
        if self._group is not None or any(p.dtype != summed_in(p) for p in self._parameters):
            multiple_of = self._torus.row_length if self._torus is not None else 1
            self._buckets, self._tail = lay_out(self._parameters, *self._caps, self._tail_length, multiple_of)
        else:
            first = self._parameters[0]
            dtype = torch.float32 if first.is_complex() else summed_in(first)
            self._tail = torch.zeros(self._tail_length, dtype=dtype, device=first.device)
        self._watch()

    def compute(self, batch: GlobalBatch, votes: Callable[[], StepVotes]) -> None:
        """Compute forward and backward passes of this rank's share of the batch, in as many micro-batches as the
        share needs. Sums over the ranks begin meanwhile; `finish` waits for them."""
        chunks = batch.chunks(self._rank, self._world_size, together=False)
        num_local = sum(chunk.num_counted for chunk in chunks)
        self.begin(num_local, batch.num_samples, votes, carried=batch.carried)
        compute_passes(self, batch, chunks)

    def begin(
        self,
        num_local: int,
        num_global: int,
        votes: Callable[[], StepVotes] = StepVotes,
        *,
        carried: torch.Tensor | float | None = None,
    ) -> None:
        """Start a step in which this rank computes `num_local` of `num_global` samples.

        `votes` is called when the last bucket is sent. `carried` is this rank's number for
        `GradientNorms.carried`; a reducer that measures no noise ignores it.
        """
        self._armed, self._next = False, 0
        self._num_global, self._votes = num_global, votes
        self._norms.clear()
        for parameter in self._parameters:
            parameter.grad = None
        for bucket in self._buckets:
            bucket.open()
        if self.look is not None and num_local:
            self.look.expect_from(self._parameters)
        # One copy instead of one write per number: single writes would slow steps of a few milliseconds.
        numbers = [0.0, num_local, 0.0, 0.0, 0.0, 0.0, 0.0, float(carried is not None)][: len(self._tail)]
        self._tail.copy_(torch.tensor(numbers, dtype=self._tail.dtype))
        if self._measure_noise and carried is not None:
            self._tail[_CARRIED] = carried

    def backward(
        self,
        loss: torch.Tensor,
        num_samples: int,
        *,
        last: bool,
        scale: float = 1.0,
        weight: Weight | None = None,
        inputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Accumulate `scale` times the gradient of `loss`, the mean over `num_samples` of this rank's samples.

        With a `weight` the loss is a total that has to be divided by the sum of all weights; noise cannot be
        measured then. With `num_samples` 0 the loss adds nothing. In the step's `last` micro-batch, buckets are
        sent as they fill. With `inputs` only these parameters get gradients.
        """
        self._weight = num_samples / self._num_global
        self._is_mean = weight is None
        part = self._weight
        if weight is not None:
            part = (num_samples > 0) / self._num_global
            if num_samples:
                # `begin` has added the samples, as for a mean. This makes the number -(weight + samples) instead.
                # A separate number for weights would shift the tail and change the last bits of plain means.
                self._tail[_SAMPLES] -= weight + 2 * num_samples
        self._tail[_LOSS].add_(loss.detach().to(self._tail.device), alpha=part)
        self._armed = last and bool(self._buckets)
        loss.backward(torch.full_like(loss, part * scale), inputs=inputs)
        self._armed = False
        self._note_part()

    def own_part(self) -> tuple[float, float, bool]:
        """What this rank alone has given to the step so far: the mean loss, its weight, which is the samples or
        the sum of the losses' weights, and whether these were given. Gradients of the mean are `own_gradients`,
        multiplied by samples / weight."""
        loss, number = self._tail[_LOSS : _SAMPLES + 1].tolist()
        if number >= 0:
            return loss, number, False
        weight = -number - self._num_global
        return loss * to_mean(self._num_global, weight), weight, True

    def own_gradients(self) -> dict[int, torch.Tensor]:
        """id of each parameter that has one -> the sum of the gradients that this rank's backward passes have
        made in the present step."""
        own = {id(p): p.grad for p in self._parameters if p.grad is not None}
        for bucket in self._buckets:
            own |= {id(bucket.parameters[number]): bucket.gradients[number] for number in bucket.begun}
        return own

    @property
    def has_gradients(self) -> bool:
        """Whether the backward passes of the present step have given any parameter a gradient."""
        return any(bucket.begun for bucket in self._buckets) or any(p.grad is not None for p in self._parameters)

    def abstain(self) -> None:
        """Take part in the step that has begun without giving it anything: `finish` then raises
        `SharesMissingError` on every rank."""
        self._tail[_SAMPLES] = math.inf

    def finish(self) -> Reduced:
        """Wait until every `p.grad` is the gradient of the global batch's mean loss. Returns the mean loss, the
        sums of the ranks' votes and, where noise is measured, the gradients' norms.

        Raises `GroupError` if a rank is gone or ranks are at different steps, `SharesMissingError` if a rank
        abstains, and `TaskError` if some losses are means and others totals.
        """
        # Send the buckets with parameters that took no part in the loss; all buckets if the share was empty.
        while self._next < len(self._buckets):
            self._send_next()
        if not self._buckets:
            self._vote()
        for bucket in self._buckets:
            self._wait_for(bucket)
        if self._group is not None:
            refuse_void(self._tail.device)
        loss, num_samples, signal, flag, *noise = self._tail.tolist()
        factor = self._to_mean(num_samples)
        loss *= factor
        multiply_gradients(self._parameters, self._buckets, factor)
        for bucket in self._buckets:
            bucket.hand_out()
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        total_sqr = self._total_sqr() if self._measure_noise else None
        if total_sqr is None:
            return Reduced(loss, StepVotes.of(signal, flag))
        parts_sqr, num_parts, carried, num_carried = noise
        norms = GradientNorms(
            parts_sqr, round(num_parts), total_sqr, carried / num_carried if num_carried else None
        )
        return Reduced(loss, StepVotes.of(signal, flag), norms)

    def _to_mean(self, num_samples: float) -> float:
        """The factor that turns the ranks' sums into the global batch's mean. `num_samples` is the ranks' sum of
        samples; where losses are totals, it is negative: -(weights + samples).

        Raises `TaskError` if some losses are means and others totals, and `GroupError` if the ranks are at
        different steps.
        """
        if num_samples == math.inf:
            raise SharesMissingError("a rank has left its loop, and gives the step nothing", 0)
        has_totals = not num_samples >= 0
        if self._is_mean is has_totals:
            raise TaskError(NOT_ALWAYS_A_TOTAL)
        if has_totals:
            return to_mean(self._num_global, -num_samples - self._num_global)
        if num_samples != self._num_global and self._group is not None:
            raise SharesMissingError(
                f"the ranks together took {num_samples:g} samples of a batch of {self._num_global}: "
                "they are not at the same step",
                round(num_samples),
            )
        return 1.0

    def _gradient_is_complete(self, place: int, number: int, _: torch.Tensor) -> None:
        bucket = self._buckets[place]
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
            self._note_part()  # The tail is sent with this bucket.
            self._vote()
        if self._group is None:
            return
        try:
            if self._torus is not None:
                bucket.work = self._torus.start(bucket.flat)
            else:
                bucket.work = dist.all_reduce(bucket.flat, group=self._group, async_op=True)
        except RuntimeError as error:
            raise GroupError(f"gradients could not be sent: {error}") from error

    def _vote(self) -> None:
        self._votes().write(self._tail, _SIGNAL, _FLAG)

    def _wait_for(self, bucket: Bucket) -> None:
        if bucket.work is None:
            return
        try:
            wait_for(bucket.work, bucket.flat)
        except RuntimeError as error:
            raise GroupError(f"a rank was lost during a step: {error}") from error
        bucket.work = None

    def _form_torus(self, world_size: int, subgroups: Subgroups | None) -> None:
        if self._torus is not None:
            self._torus.close()
            self._torus = None
        if self._all_reduce != "torus" or self._group is None or subgroups is None:
            return
        shape = grid(world_size, subgroups.node_sizes)
        if not shape.is_plain:
            self._torus = TorusAllReduce.form(shape, self._group.rank(), subgroups)

    def _watch(self) -> None:
        tell = weak_hook(self._gradient_is_complete)
        for place, bucket in enumerate(self._buckets):
            for number, parameter in enumerate(bucket.parameters):
                on_gradient = partial(tell, place, number)
                self._hooks.append(parameter.register_post_accumulate_grad_hook(on_gradient))
        if self._measure_noise:
            # These hooks see a micro-batch's gradient before it is added to those of earlier micro-batches.
            note_norm = weak_hook(self._note_norm)
            self._hooks += [parameter.register_hook(note_norm) for parameter in self._parameters]

    def _note_norm(self, gradient: torch.Tensor) -> None:
        self._norms.append(self._norm(gradient))

    def _note_part(self) -> None:
        """Count the micro-batch whose gradient is complete, and add (n_i / n) |g_i|^2 for it to the sum of squared
        norms. The norms noted so far are of its weighted gradient (n_i / n) g_i."""
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
