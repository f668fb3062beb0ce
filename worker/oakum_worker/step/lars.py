"""Layer-wise adaptive rate scaling: each layer's step is in proportion to its weights.

LARS (You, Gitman and Ginsburg, arXiv:1708.03888) gives layer l with weights w and gradient g, under a weight
decay of beta, a local learning rate of

    lambda = eta |w| / (|g| + beta |w|)                                       (equation 6)

and steps by (its algorithm 1, with m the momentum and gamma the global learning rate)

    v <- m v + gamma lambda (g + beta w),       w <- w - v.

Here g becomes lambda (g + beta w) before the optimizer's own step, from which the weight decay is then left out.
`torch.optim.SGD` multiplies by gamma after the momentum instead of before it, which makes no difference while
gamma is constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import SGD, Optimizer

from oakum_worker.errors import TaskError
from oakum_worker.spec_options import LarsSpec


class TrustRatios:
    """Scales the gradients of an optimizer's layers for its step.

    Parameters of fewer than two dimensions (biases and norms) keep the global learning rate and their weight
    decay, as is the custom with LARS: their gradients say little about their scale. A layer whose weights are all
    zero keeps both, too, since equation 6 would never let it move.
    """

    def __init__(self, optimizer: Optimizer, spec: LarsSpec) -> None:
        """Raises `TaskError` for an optimizer whose step does not grow with the gradient."""
        if not isinstance(optimizer, SGD):
            raise TaskError(
                f"lars is given and the task's optimizer is {type(optimizer).__name__}: use torch.optim.SGD (an "
                "optimizer that divides by the gradient's size undoes a layer's learning rate), or leave out lars"
            )
        self._optimizer = optimizer
        self._spec = spec

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Context in which the optimizer's step is a LARS step. The scaled `p.grad` stay scaled afterwards."""
        groups = self._optimizer.param_groups
        decays = [group["weight_decay"] for group in groups]
        try:
            for group in groups:
                self._apply(group)
                group["weight_decay"] = 0.0
            yield
        finally:
            for group, decay in zip(groups, decays, strict=True):
                group["weight_decay"] = decay

    @torch.no_grad()
    def _apply(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        layers = [p for p in parameters if p.ndim > 1]
        ratios = self._ratios(layers, group) if layers else ()
        if group["weight_decay"]:
            for parameter in parameters:
                # SGD turns the gradient around after this where it maximizes, and adds the decay then.
                decay = -group["weight_decay"] if group["maximize"] else group["weight_decay"]
                parameter.grad.add_(parameter, alpha=decay)
        for layer, ratio in zip(layers, ratios, strict=True):
            layer.grad.mul_(ratio)

    def _ratios(self, layers: list[torch.Tensor], group: dict[str, Any]) -> torch.Tensor:
        """The factors by which the layers' gradients are multiplied, shape (layers,)."""
        weights = _norms(layers)
        gradients = _norms([layer.grad for layer in layers if layer.grad is not None])
        divisors = gradients + group["weight_decay"] * weights
        ratios = self._spec.trust_coefficient * weights / divisors
        if self._spec.clip:
            ratios = (ratios / group["lr"]).clamp(max=1)
        return torch.where((weights > 0) & (divisors > 0), ratios, 1.0)


def _norms(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Each tensor's norm, in at least float32, shape (tensors,). Sharded tensors take one collective for all."""
    widest = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    norms: Any = torch.stack([torch.linalg.vector_norm(t, dtype=widest) for t in tensors])
    return norms.full_tensor() if hasattr(norms, "full_tensor") else norms
