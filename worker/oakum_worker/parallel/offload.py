"""Adam and SGD with their state in the host's memory; a step copies it to the device bucket by bucket.

    optimizer = OffloadedAdamW(model.parameters(), lr=3e-4)

The method is that of AxoNN (arXiv:2110.13005). The classes replace torch's optimizers of these names, also in a
task for Oakum, and their states are interchangeable with torch's. For phi parameters in half precision the device
holds 4 phi bytes, 2 for each weight and 2 for its gradient, instead of 20; float32 weights and moments are on the
host, in pinned memory where the device is a GPU. A step copies one bucket at a time to the device, with 16 bytes
for each element (weight, gradient and two moments in float32), updates it there and copies it back. While one half
of the bucket is updated, the other half is copied. Parameters in float32 have their weights on the device alone,
and only their moments on the host.

If a gradient is infinite or NaN on any rank, the step changes nothing on any rank and sets `overflowed`.

By default the optimizer expects gradients that are already summed over the ranks. Oakum's trainers sum them during
backward in float32, which takes 4 phi more bytes. Alternatively, after `join`, the optimizer sums gradients itself
while it updates other buckets: four buckets in one all-reduce, in the parameters' own type; the loss must then be
scaled so that the sum over the ranks is the wanted gradient. Oakum's trainers do not use `join`: a rank lost
during such a step leaves some weights updated and others not, while an interrupted step has to be repeatable from
weights that change only after every gradient has arrived.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import SGD, Adam, Optimizer

from oakum_worker.parallel.lost_peers import lost_peers
from oakum_worker.parallel.offload_storage import (
    WEIGHTS,
    FlatStorage,
    UpdateSpan,
    flat_storages,
    kinds,
    update_dtype,
)
from oakum_worker.parallel.offload_streams import WorkStreams, work_streams_of
from oakum_worker.parallel.waiting import all_reduce, wait_for

BUCKET_ELEMENTS = 16_000_000
"""Bucket size of AxoNN."""
_BUCKETS_PER_SUM = 4
"""Number of buckets summed by one all-reduce."""


class _Half:
    """One of the two halves of the device memory through which an offloaded update passes: holds the weights,
    gradients and moments of one span of elements at a time."""

    def __init__(self, rows: torch.Tensor, moments: Sequence[str]) -> None:
        self._rows, self._names = rows, moments
        self.free: torch.cuda.Event | None = None
        """Event after which the previous span has been copied out."""

    def places(self, span: UpdateSpan) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Memory for the span's weights, gradients and moments (by name), each of shape (elements,)."""
        weights, gradients, *moments = self._rows[:, : len(span.elements)]
        return weights, gradients, dict(zip(self._names, moments, strict=True))


class _Sums:
    """The all-reduces that sum one storage's gradients over the ranks, part by part."""

    def __init__(self, works: Sequence[tuple[Any, torch.Tensor]], part: int) -> None:
        """`works` are pairs in the order of the storage: an all-reduce in progress, and the elements that it sums,
        `part` of them or, in the last pair, what is left."""
        self._works, self._part = works, part
        self._arrived = 0

    def wait(self, stop: int | None = None) -> None:
        """Wait until the elements before `stop` are summed; all elements if it is None."""
        while self._arrived < len(self._works) and (stop is None or self._arrived * self._part < stop):
            wait_for(*self._works[self._arrived])
            self._arrived += 1


class Offloaded(Optimizer):
    """Base class of the offloaded optimizers. It copies weights and moments between host and device, sums
    gradients after `join`, and reads and writes states in torch's form; a derived class adds the update rule."""

    bucket_elements: int
    overflowed: bool
    """Whether the last step found an infinite or NaN gradient and therefore changed nothing."""
    checks_overflow: bool
    """Whether a step looks for infinite and NaN gradients; switch it off if the caller has done so."""

    def _offload(self, bucket_elements: int) -> None:
        if bucket_elements < 1:
            raise ValueError(f"bucket_elements is {bucket_elements}: give at least 1")
        self.bucket_elements = bucket_elements
        self.overflowed = False
        self.checks_overflow = True
        self._storages: dict[int, list[FlatStorage]] = {}
        self._group: dist.ProcessGroup | None = None

    def _moments(self, group: dict[str, Any]) -> Sequence[str]:
        """Names of the moments that the update rule keeps for each weight."""
        raise NotImplementedError

    def _advance(self, parameter: torch.Tensor) -> Any:
        """Count a step in the parameter's state; return what its update depends on, such as the step's number."""
        raise NotImplementedError

    def _update(
        self,
        group: dict[str, Any],
        advance: Any,
        weights: torch.Tensor,
        gradients: torch.Tensor,
        moments: Sequence[torch.Tensor],
    ) -> None:
        """Update `weights` and `moments` in place by the optimizer's rule, with the options of `group`. All are
        tensors of shape (elements,) on the device; `advance` is what `_advance` returned. Overwrites the
        gradients."""
        raise NotImplementedError

    def join(self, group: dist.ProcessGroup | None) -> None:
        """Make `step` sum gradients over `group` from now on; None switches that off. Does not communicate.

        Gradients of each storage are then kept in one tensor, which `zero_grad` prepares.
        """
        self._group = group
        for storage in self._all_storages():
            storage.take_gradients(group is not None)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters, or none if a gradient of any rank is not finite (`overflowed` tells). Returns
        what `closure` returns; None without one.

        Raises `GroupError` when a rank is gone; some parameters may then be updated and others not.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with lost_peers("in the optimizer"):
            self._take_step()
        return loss

    def forget(self) -> None:
        """Drop all state, and all references to parameters except those in `param_groups`, so that these can be
        filled with other parameters."""
        self.state.clear()
        self._storages.clear()

    def device_bytes(self) -> int:
        """Upper bound, in bytes, of the device memory that a step needs besides parameters and gradients."""
        largest = 0
        for group in self.param_groups:
            for parameters in kinds(group["params"]):
                element_bytes = (2 + len(self._moments(group))) * update_dtype(parameters[0]).itemsize
                length = min(self.bucket_elements, sum(p.numel() for p in parameters))
                largest = max(largest, element_bytes * length)
        return largest

    def _take_step(self) -> None:
        all_storages = self._all_storages()
        if self._group is not None:
            for storage in all_storages:
                storage.gather_gradients()
        sums = self._finite_sums(all_storages)
        self.overflowed = sums is None
        if sums is None:
            return
        for number, group in enumerate(self.param_groups):
            for storage in self._storages[number]:
                self._step_storage(group, storage, sums[id(storage)])

    def _all_storages(self) -> list[FlatStorage]:
        for number, group in enumerate(self.param_groups):
            if number not in self._storages:
                self._storages[number] = flat_storages(group["params"], self._moments(group))
                for storage in self._storages[number]:
                    storage.take_gradients(self._group is not None)
        return [storage for number in range(len(self.param_groups)) for storage in self._storages[number]]

    def _finite_sums(self, all_storages: list[FlatStorage]) -> dict[int, _Sums] | None:
        """Begin to sum each storage's gradients over the ranks. Returns id of a storage -> its sums in progress;
        None, on all ranks alike, where a summed gradient is not finite."""
        bounds = self._bounds(all_storages) if self.checks_overflow else [0.0] * len(all_storages)
        if not all(map(math.isfinite, bounds)):
            return None
        sums = {id(storage): self._send(storage) for storage in all_storages}
        limits = [torch.finfo(storage.parameters[0].dtype).max for storage in all_storages]
        if all(bound <= limit for bound, limit in zip(bounds, limits, strict=True)):
            return sums
        for of_shelf in sums.values():
            of_shelf.wait()
        return sums if all(storage.largest_gradient().isfinite() for storage in all_storages) else None

    def _bounds(self, all_storages: list[FlatStorage]) -> list[float]:
        """For each storage an upper bound on its summed gradients, equal on all ranks; infinite or NaN where one
        is.

        |sum_r g_r| <= sum_r max |g_r|. Only where the bound exceeds the parameters' type must the sums themselves
        be checked before the first update; otherwise the first bucket does not wait for the sums of the last.
        """
        if not all_storages:
            return []
        largest = torch.stack([storage.largest_gradient().to(all_storages[0].device) for storage in all_storages])
        if self._group is not None:
            all_reduce(largest, self._group)
        return largest.tolist()

    def _send(self, storage: FlatStorage) -> _Sums:
        """Begin to sum the storage's gradients over the ranks; no sums without a joined group."""
        part = _BUCKETS_PER_SUM * self.bucket_elements
        if self._group is None or storage.gradients is None:
            return _Sums([], part)
        parts = storage.gradients.split(part)
        return _Sums([(self._group.allreduce([gradients]), gradients) for gradients in parts], part)

    def _step_storage(self, group: dict[str, Any], storage: FlatStorage, sums: _Sums) -> None:
        advances = {id(p): self._advance(p) for p in storage.parameters if p.grad is not None}
        names, length = self._moments(group), -(-self.bucket_elements // 2)
        rows = storage.weights_like.new_empty(2, 2 + len(names), min(length, storage.length))
        streams = work_streams_of(storage.device)
        # Earlier computations may still use the memory that `rows` gets.
        streams.inward.wait(streams.compute.mark())
        halves = itertools.cycle([_Half(half, names) for half in rows])
        try:
            for start in range(0, storage.length, length):
                for span in storage.spans(range(start, min(start + length, storage.length)), advances):
                    self._pass_through(streams, group, span, next(halves), sums)
        finally:
            # Between steps the host's memory may be read and the device's memory reused.
            streams.inward.finish()
            streams.outward.finish()
        for parameter in storage.parameters:
            if id(parameter) in advances and (kept := storage.kept(parameter)):
                self.state[parameter].update(kept)

    def _pass_through(
        self, streams: WorkStreams, group: dict[str, Any], span: UpdateSpan, half: _Half, sums: _Sums
    ) -> None:
        """Copy the elements of `span` to the device, into `half` a bucket, update them, and copy them back. On a
        GPU, the three are only queued on `streams`."""
        weights, gradients, moments = half.places(span)

        def update() -> None:
            sums.wait(span.elements.stop)
            span.gather(weights, gradients)
            self._update(group, span.advance, weights, gradients, list(moments.values()))
            span.apply(weights)

        streams.inward.wait(half.free)
        streams.inward.do(partial(span.fetch, weights, moments))
        streams.compute.wait(streams.inward.mark())
        streams.compute.do(update)
        streams.outward.wait(streams.compute.mark())
        streams.outward.do(partial(span.store, weights, moments))
        half.free = streams.outward.mark()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's `zero_grad`; after `join`, gradients are set to zero in place instead of removed."""
        if self._group is None:
            super().zero_grad(set_to_none)
            return
        for storage in self._all_storages():
            storage.clear_gradients()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of this class or of torch's optimizer of the same name; moments stay on the host.

        Raises `ValueError` where the state belongs to other parameters.
        """
        # torch's method would copy the moments to the device and convert them to the parameters' type.
        super().load_state_dict({**state_dict, "state": {}})
        self.forget()
        homes = {id(p): storage for storage in self._all_storages() for p in storage.parameters}
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            if number in state_dict["state"] and id(parameter) in homes:
                self._load(parameter, state_dict["state"][number], homes[id(parameter)].kept(parameter))

    def _load(self, parameter: torch.Tensor, values: dict[str, Any], kept: dict[str, torch.Tensor]) -> None:
        state = self.state[parameter]
        for name, value in values.items():
            if name in kept and value is not None:
                if value.shape != parameter.shape:
                    raise ValueError(
                        f"{name} has the shape {tuple(value.shape)} in the state and its parameter "
                        f"{tuple(parameter.shape)}: load the state into the optimizer of the same model"
                    )
                state[name] = kept[name].copy_(value)
            else:
                state[name] = value.detach().clone().cpu() if isinstance(value, torch.Tensor) else value
        if WEIGHTS in kept:
            state[WEIGHTS] = kept[WEIGHTS]


class OffloadedAdam(Offloaded, Adam):
    """torch's Adam without `amsgrad`, with its state on the host."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """Options as those of torch's Adam. `bucket_elements` is the number of parameters' elements whose weights
        and moments are on the device at a time."""
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            maximize=maximize,
            decoupled_weight_decay=decoupled_weight_decay,
        )
        self._offload(bucket_elements)

    def _moments(self, group: dict[str, Any]) -> Sequence[str]:
        return ("exp_avg", "exp_avg_sq")

    def _advance(self, parameter: torch.Tensor) -> int:
        state = self.state[parameter]
        state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32) + 1
        return int(state["step"])

    def _update(
        self,
        group: dict[str, Any],
        advance: int,
        weights: torch.Tensor,
        gradients: torch.Tensor,
        moments: Sequence[torch.Tensor],
    ) -> None:
        """Adam's update in place, by algorithm 1 of Kingma and Ba, arXiv:1412.6980; decoupled weight decay as in
        arXiv:1711.05101. `advance` is the number of the step. Overwrites the gradients."""
        mean, square = moments
        beta1, beta2 = group["betas"]
        lr, decay = float(group["lr"]), group["weight_decay"]
        if group["maximize"]:
            gradients.neg_()
        if decay and group["decoupled_weight_decay"]:
            weights.mul_(1 - lr * decay)
        elif decay:
            gradients.add_(weights, alpha=decay)
        mean.lerp_(gradients, 1 - beta1)
        square.mul_(beta2).addcmul_(gradients, gradients, value=1 - beta2)
        # Reuses the gradients' memory: a new tensor would take a fifth of a bucket more on the device.
        divisors = torch.sqrt(square, out=gradients)
        divisors.div_(math.sqrt(1 - beta2**advance)).add_(group["eps"])
        weights.addcdiv_(mean, divisors, value=-lr / (1 - beta1**advance))


class OffloadedAdamW(OffloadedAdam):
    """torch's AdamW without `amsgrad`, with its state on the host."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """Options as those of torch's AdamW. `bucket_elements` is the number of parameters' elements whose weights
        and moments are on the device at a time."""
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            maximize=maximize,
            decoupled_weight_decay=True,
            bucket_elements=bucket_elements,
        )


class OffloadedSGD(Offloaded, SGD):
    """torch's SGD, with its momentum on the host."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        *,
        nesterov: bool = False,
        maximize: bool = False,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        """Options as those of torch's SGD. `bucket_elements` is the number of parameters' elements whose weights
        and moments are on the device at a time."""
        super().__init__(params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize)
        self._offload(bucket_elements)

    def _moments(self, group: dict[str, Any]) -> Sequence[str]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _advance(self, parameter: torch.Tensor) -> bool:
        return parameter in self.state and self.state[parameter].get("momentum_buffer") is not None

    def _update(
        self,
        group: dict[str, Any],
        advance: bool,
        weights: torch.Tensor,
        gradients: torch.Tensor,
        moments: Sequence[torch.Tensor],
    ) -> None:
        """SGD's update in place, as torch's: where `advance` is False, for the first step, the momentum becomes
        the gradient, without dampening. Overwrites the gradients."""
        if group["maximize"]:
            gradients.neg_()
        if group["weight_decay"]:
            gradients.add_(weights, alpha=group["weight_decay"])
        direction = gradients
        if moments:
            (momentum,) = moments
            if advance:
                momentum.mul_(group["momentum"]).add_(gradients, alpha=1 - group["dampening"])
            else:
                momentum.copy_(gradients)
            direction = gradients.add_(momentum, alpha=group["momentum"]) if group["nesterov"] else momentum
        weights.add_(direction, alpha=-float(group["lr"]))
