"""Adam and SGD whose state is in the host's memory and visits the device in buckets (AxoNN, arXiv:2110.13005).

    optimizer = OffloadedAdamW(model.parameters(), lr=3e-4)

They take the part of torch's optimizers of these names, also in a task for Oakum, and their states fit each other.
Of phi parameters in half precision the device then has 4 phi bytes, 2 for each weight and 2 for its gradient,
instead of 20: weights in float32 and moments are on the host, pinned where the device is a GPU. A step brings in
one bucket at a time, 16 bytes for each of its elements (weight, gradient and two moments in float32), computes
there and brings it back. Parameters in float32 are on the device alone, and only their moments on the host.

Gradients are those that it finds, summed already, as in a task for Oakum. Or it sums them itself over a group
that it has joined, while other buckets are computed: four buckets in one all-reduce, in the parameters' own type.
The loss then has to be scaled such that the sum over the ranks is what is wanted.

Where a gradient is infinite or NaN, on any rank, a step changes nothing on any rank, and `overflowed` says so.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import SGD, Adam, Optimizer

from oakum_worker.group import lost_peers
from oakum_worker.parallel.offload_shelf import WEIGHTS, Shelf, shelves
from oakum_worker.parallel.waiting import all_reduce

BUCKET_ELEMENTS = 16_000_000
"""What AxoNN uses."""
_BUCKETS_PER_SUM = 4
"""Coalesced in one all-reduce."""


class _Offloaded(Optimizer):
    """What is common to all rules: buckets, streaming, sums over the ranks, the state's form."""

    bucket_elements: int
    overflowed: bool
    """Whether the last step found gradients that are infinite or NaN, and changed nothing."""

    def _offload(self, bucket_elements: int) -> None:
        if bucket_elements < 1:
            raise ValueError(f"bucket_elements is {bucket_elements}: give at least 1")
        self.bucket_elements = bucket_elements
        self.overflowed = False
        self._shelves: dict[int, list[Shelf]] = {}
        self._group: dist.ProcessGroup | None = None
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

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

    def _take_step(self) -> None:
        all_shelves = self._all_shelves()
        if self._group is not None:
            for shelf in all_shelves:
                shelf.gather_gradients()
        self.overflowed = self._overflows(all_shelves)
        if self.overflowed:
            return
        sums = {id(shelf): self._send(shelf) for shelf in all_shelves}
        for number, group in enumerate(self.param_groups):
            for shelf in self._shelves[number]:
                with self._streaming(shelf.device):
                    self._step_shelf(group, shelf, sums[id(shelf)])

    def _all_shelves(self) -> list[Shelf]:
        for number, group in enumerate(self.param_groups):
            if number not in self._shelves:
                self._shelves[number] = shelves(group["params"], self._moments(group))
                for shelf in self._shelves[number]:
                    shelf.take_gradients(self._group is not None)
        return [shelf for number in range(len(self.param_groups)) for shelf in self._shelves[number]]

    def _overflows(self, all_shelves: list[Shelf]) -> bool:
        """Whether a gradient is not finite, or a sum over the ranks might not be, the same on all of them.

        |sum_r g_r| <= sum_r max |g_r|: so the sums need not be waited for, nor their overflow feared, before the
        first bucket is updated.
        """
        if not all_shelves:
            return False
        largest = torch.stack([shelf.largest_gradient().to(all_shelves[0].device) for shelf in all_shelves])
        if self._group is not None:
            all_reduce(largest, self._group)
        limits = [torch.finfo(shelf.parameters[0].dtype).max for shelf in all_shelves]
        return not all(value <= limit for value, limit in zip(largest.tolist(), limits, strict=True))

    def _send(self, shelf: Shelf) -> list[Any]:
        """Begin to sum the gradients over the ranks, in order; nothing where that is not for us to do."""
        if self._group is None or shelf.gradients is None:
            return []
        parts = shelf.gradients.split(_BUCKETS_PER_SUM * self.bucket_elements)
        return [self._group.allreduce([part]) for part in parts]

    @contextlib.contextmanager
    def _streaming(self, device: torch.device) -> Iterator[None]:
        if device.type != "cuda":
            yield
            return
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            yield
        torch.cuda.current_stream(device).wait_stream(stream)

    def _step_shelf(self, group: dict[str, Any], shelf: Shelf, sums: list[Any]) -> None:
        advances = {id(p): self._advance(p) for p in shelf.parameters if p.grad is not None}
        names = self._moments(group)
        rows = shelf.weights_like.new_empty(2 + len(names), min(self.bucket_elements, shelf.length))
        for number, start in enumerate(range(0, shelf.length, self.bucket_elements)):
            if sums and number % _BUCKETS_PER_SUM == 0:
                sums[number // _BUCKETS_PER_SUM].wait()
            stop = min(start + self.bucket_elements, shelf.length)
            for run in shelf.runs(range(start, stop), advances):
                weights, gradients, *moments = rows[:, : len(run.elements)]
                run.fetch(weights, gradients, dict(zip(names, moments, strict=True)))
                self._update(group, run.advance, weights, gradients, moments)
                run.store(weights, dict(zip(names, moments, strict=True)))
        for parameter in shelf.parameters:
            if id(parameter) in advances and (kept := shelf.kept(parameter)):
                self.state[parameter].update(kept)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As torch's; in a group gradients are zeroed and stay in their places."""
        if self._group is None:
            super().zero_grad(set_to_none)
            return
        for shelf in self._all_shelves():
            shelf.clear_gradients()

    def state_dict(self) -> dict[str, Any]:
        """By torch's rules. Its tensors are on the host."""
        for stream in getattr(self, "_streams", {}).values():
            stream.synchronize()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """By torch's rules, also from torch's own optimizer of this kind. Moments stay on the host.

        Raises `ValueError` where it belongs to other parameters.
        """
        # torch's own would bring moments to the device, in the parameters' type.
        super().load_state_dict({**state_dict, "state": {}})
        self.state.clear()
        self._shelves.clear()
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


class OffloadedAdam(_Offloaded, Adam):
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


class OffloadedSGD(_Offloaded, SGD):
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
