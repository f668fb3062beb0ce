"""Adam and SGD whose state is in the host's memory and visits the device in buckets (AxoNN, arXiv:2110.13005).

    optimizer = OffloadedAdamW(model.parameters(), lr=3e-4)

They take the part of torch's optimizers of these names, also in a task for Oakum, and their states fit each other.
Of phi parameters in half precision the device then has 4 phi bytes, 2 for each weight and 2 for its gradient,
instead of 20: weights in float32 and moments are on the host, pinned where the device is a GPU. A step brings in
one bucket at a time, 16 bytes for each of its elements (weight, gradient and two moments in float32), computes
there and brings it back. While one half of the bucket is computed the other one comes or goes. Parameters in
float32 are on the device alone, and only their moments on the host.

Where a gradient is infinite or NaN, on any rank, a step changes nothing on any rank, and `overflowed` says so.

Gradients are those that it finds, summed already, as in a task for Oakum: there they are summed while backward
runs, in float32, which takes 4 phi bytes more. Or it sums them itself over a group that it has joined, while other
buckets are computed: four buckets in one all-reduce, in the parameters' own type. The loss then has to be scaled
such that the sum over the ranks is what is wanted. A rank that is lost meanwhile leaves weights of two steps
behind, so Oakum's trainers do not join: they take a step that broke off again, from weights that nothing may have
changed before every gradient was there.
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

from oakum_worker.group import lost_peers
from oakum_worker.parallel.offload_lanes import Lanes, lanes_of
from oakum_worker.parallel.offload_shelf import WEIGHTS, Run, Shelf, kinds, shelves, updated_in
from oakum_worker.parallel.waiting import all_reduce

BUCKET_ELEMENTS = 16_000_000
"""What AxoNN uses."""
_BUCKETS_PER_SUM = 4
"""Coalesced in one all-reduce."""


class _Half:
    """Half a bucket on the device, which one run of elements at a time fills."""

    def __init__(self, rows: torch.Tensor, moments: Sequence[str]) -> None:
        self._rows, self._names = rows, moments
        self.free: torch.cuda.Event | None = None
        """Marks the moment when the last run has left it."""

    def places(self, run: Run) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """For the run's weights, gradients and moments by name, each of shape (elements,)."""
        weights, gradients, *moments = self._rows[:, : len(run.elements)]
        return weights, gradients, dict(zip(self._names, moments, strict=True))


class _Sums:
    """Sums of a shelf's gradients over the ranks, which arrive part by part."""

    def __init__(self, works: Sequence[Any], part: int) -> None:
        """Each of the works is of `part` elements of the shelf, and the last one of what is left."""
        self._works, self._part = works, part
        self._arrived = 0

    def wait(self, stop: int | None = None) -> None:
        """For those of the elements before `stop`, or for all."""
        while self._arrived < len(self._works) and (stop is None or self._arrived * self._part < stop):
            self._works[self._arrived].wait()
            self._arrived += 1


class Offloaded(Optimizer):
    """What is common to all rules: buckets, streaming, sums over the ranks, the state's form."""

    bucket_elements: int
    overflowed: bool
    """Whether the last step found gradients that are infinite or NaN, and changed nothing."""
    checks_overflow: bool
    """Whether a step looks for such gradients; else whoever calls it has."""

    def _offload(self, bucket_elements: int) -> None:
        if bucket_elements < 1:
            raise ValueError(f"bucket_elements is {bucket_elements}: give at least 1")
        self.bucket_elements = bucket_elements
        self.overflowed = False
        self.checks_overflow = True
        self._shelves: dict[int, list[Shelf]] = {}
        self._group: dist.ProcessGroup | None = None

    def _moments(self, group: dict[str, Any]) -> Sequence[str]:
        """Keys of what the rule keeps for each weight."""
        raise NotImplementedError

    def _advance(self, parameter: torch.Tensor) -> Any:
        """Another step of a parameter: note it in its state, and return what tells how its weights are updated."""
        raise NotImplementedError

    def _update(
        self,
        group: dict[str, Any],
        advance: Any,
        weights: torch.Tensor,
        gradients: torch.Tensor,
        moments: Sequence[torch.Tensor],
    ) -> None:
        """The rule, in place, on tensors of shape (elements,) on the device. Spoils the gradients."""
        raise NotImplementedError

    def join(self, group: dist.ProcessGroup | None) -> None:
        """Sum gradients over `group` from now on; None leaves them as they are. Does not communicate.

        Gradients then lie in one tensor, 2 bytes for each half-precision parameter; `zero_grad` prepares them.
        """
        self._group = group
        for shelf in self._all_shelves():
            shelf.take_gradients(group is not None)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step, or none where a gradient of any rank is not finite.

        Raises `GroupError` when a rank is gone: parameters may then be of two steps, and are of no more use.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with lost_peers("in the optimizer"):
            self._take_step()
        return loss

    def forget(self) -> None:
        """Let go of the state and of the parameters; those of `param_groups` may be others from now on."""
        self.state.clear()
        self._shelves.clear()

    def device_bytes(self) -> int:
        """What a step needs at most beside parameters and gradients."""
        largest = 0
        for group in self.param_groups:
            for parameters in kinds(group["params"]):
                element_bytes = (2 + len(self._moments(group))) * updated_in(parameters[0]).itemsize
                length = min(self.bucket_elements, sum(p.numel() for p in parameters))
                largest = max(largest, element_bytes * length)
        return largest

    def _take_step(self) -> None:
        all_shelves = self._all_shelves()
        if self._group is not None:
            for shelf in all_shelves:
                shelf.gather_gradients()
        sums = self._finite_sums(all_shelves)
        self.overflowed = sums is None
        if sums is None:
            return
        for number, group in enumerate(self.param_groups):
            for shelf in self._shelves[number]:
                self._step_shelf(group, shelf, sums[id(shelf)])

    def _all_shelves(self) -> list[Shelf]:
        for number, group in enumerate(self.param_groups):
            if number not in self._shelves:
                self._shelves[number] = shelves(group["params"], self._moments(group))
                for shelf in self._shelves[number]:
                    shelf.take_gradients(self._group is not None)
        return [shelf for number in range(len(self.param_groups)) for shelf in self._shelves[number]]

    def _finite_sums(self, all_shelves: list[Shelf]) -> dict[int, _Sums] | None:
        """Begin to sum gradients over the ranks, by shelf. None where they are not finite, on all ranks alike."""
        bounds = self._bounds(all_shelves) if self.checks_overflow else [0.0] * len(all_shelves)
        if not all(map(math.isfinite, bounds)):
            return None
        sums = {id(shelf): self._send(shelf) for shelf in all_shelves}
        limits = [torch.finfo(shelf.parameters[0].dtype).max for shelf in all_shelves]
        if all(bound <= limit for bound, limit in zip(bounds, limits, strict=True)):
            return sums
        for of_shelf in sums.values():
            of_shelf.wait()
        return sums if all(shelf.largest_gradient().isfinite() for shelf in all_shelves) else None

    def _bounds(self, all_shelves: list[Shelf]) -> list[float]:
        """For each shelf a number that no summed gradient exceeds, infinite or NaN where one of any rank is.

        |sum_r g_r| <= sum_r max |g_r|, the same on all ranks. So the sums themselves need to be looked at only
        where they might be too large for the parameters' type, and else the first bucket does not wait for the
        last one's.
        """
        if not all_shelves:
            return []
        largest = torch.stack([shelf.largest_gradient().to(all_shelves[0].device) for shelf in all_shelves])
        if self._group is not None:
            all_reduce(largest, self._group)
        return largest.tolist()

    def _send(self, shelf: Shelf) -> _Sums:
        """Begin to sum the gradients over the ranks, in order; nothing where that is not for us to do."""
        part = _BUCKETS_PER_SUM * self.bucket_elements
        if self._group is None or shelf.gradients is None:
            return _Sums([], part)
        return _Sums([self._group.allreduce([gradients]) for gradients in shelf.gradients.split(part)], part)

    def _step_shelf(self, group: dict[str, Any], shelf: Shelf, sums: _Sums) -> None:
        advances = {id(p): self._advance(p) for p in shelf.parameters if p.grad is not None}
        names, length = self._moments(group), -(-self.bucket_elements // 2)
        rows = shelf.weights_like.new_empty(2, 2 + len(names), min(length, shelf.length))
        lanes = lanes_of(shelf.device)
        # What was computed before may still use the memory that the rows are given.
        lanes.inward.wait(lanes.compute.mark())
        halves = itertools.cycle([_Half(half, names) for half in rows])
        try:
            for start in range(0, shelf.length, length):
                for run in shelf.runs(range(start, min(start + length, shelf.length)), advances):
                    self._pass_through(lanes, group, run, next(halves), sums)
        finally:
            # The host's memory can be read at any time between steps, and the device's be given to others.
            lanes.inward.finish()
            lanes.outward.finish()
        for parameter in shelf.parameters:
            if id(parameter) in advances and (kept := shelf.kept(parameter)):
                self.state[parameter].update(kept)

    def _pass_through(self, lanes: Lanes, group: dict[str, Any], run: Run, half: _Half, sums: _Sums) -> None:
        """Bring some elements in, update them, bring them back."""
        weights, gradients, moments = half.places(run)

        def update() -> None:
            sums.wait(run.elements.stop)
            run.gather(weights, gradients)
            self._update(group, run.advance, weights, gradients, list(moments.values()))
            run.apply(weights)

        lanes.inward.wait(half.free)
        lanes.inward.do(partial(run.fetch, weights, moments))
        lanes.compute.wait(lanes.inward.mark())
        lanes.compute.do(update)
        lanes.outward.wait(lanes.compute.mark())
        lanes.outward.do(partial(run.store, weights, moments))
        half.free = lanes.outward.mark()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; in a group gradients are zeroed and stay in their places."""
        if self._group is None:
            super().zero_grad(set_to_none)
            return
        for shelf in self._all_shelves():
            shelf.clear_gradients()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """By torch's rules, also from torch's own optimizer of this kind. Moments stay on the host.

        Raises `ValueError` where it belongs to other parameters.
        """
        # torch's own would bring moments to the device, in the parameters' type.
        super().load_state_dict({**state_dict, "state": {}})
        self.forget()
        homes = {id(p): shelf for shelf in self._all_shelves() for p in shelf.parameters}
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
    """torch's Adam without `amsgrad`, its state on the host."""

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
        """`bucket_elements` are on the device at a time."""
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
        """Kingma and Ba, arXiv:1412.6980, algorithm 1; decay as in arXiv:1711.05101 where it is decoupled."""
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
        # The gradients' place: a new tensor would be a fifth of a bucket more on the device.
        divisors = torch.sqrt(square, out=gradients)
        divisors.div_(math.sqrt(1 - beta2**advance)).add_(group["eps"])
        weights.addcdiv_(mean, divisors, value=-lr / (1 - beta1**advance))


class OffloadedAdamW(OffloadedAdam):
    """torch's AdamW without `amsgrad`, its state on the host."""

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
        """`bucket_elements` are on the device at a time."""
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
    """torch's SGD, its momentum on the host."""

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
        """`bucket_elements` are on the device at a time."""
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
        """As torch does: momentum begins with the first gradient, undampened."""
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
