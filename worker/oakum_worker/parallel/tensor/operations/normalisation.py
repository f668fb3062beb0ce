"""LayerNorm over features that are cut along an axis.

Mean and variance are computed in two passes, sum(x) / n and then sum((x - mean)^2) / n, since the difference of
E[x^2] and E[x]^2 cancels where the mean is large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.parallel.tensor.grids import Axes
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, block, made_like, refuse
from oakum_worker.parallel.tensor.wires import Wires


def layer_norm(
    work: Work,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Spread:
    """Rule for `F.layer_norm` over the last dimension, also where that dimension is cut: returns the result as
    a spread tensor. Raises `TaskError` for normalisation over several dimensions."""
    if not isinstance(input, Spread):
        refuse(F.layer_norm, "of a tensor that does not belong to the batch")
    assert isinstance(input, Spread)
    if len(normalized_shape) != 1 or normalized_shape[0] != input.shape[-1]:
        refuse(F.layer_norm, f"over the last {len(normalized_shape)} dimensions: normalise the last one alone")
    split = input.splits[-1]
    dtype = input.local.dtype
    local = input.local.float() if dtype in (torch.float16, torch.bfloat16) else input.local
    normalised = _Standardise.apply(
        local, work.wires, split.axes if split is not None else (), input.shape[-1], eps
    )
    if weight is not None:
        normalised = normalised * block(work, weight, input.shape, input.splits, "layer norm")
    if bias is not None:
        normalised = normalised + block(work, bias, input.shape, input.splits, "layer norm")
    keeps = torch.is_autocast_enabled(normalised.device.type)
    return made_like(input, normalised if keeps else normalised.to(dtype))


class _Standardise(torch.autograd.Function):
    """Autograd function for (x - mean) / sqrt(variance + eps) over the last dimension, which has `width` elements
    on all ranks together; collective along the axes by which it is cut."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wires: Wires, axes: Axes, width: int, eps: float) -> torch.Tensor:
        centred = x - wires.reduce(x.sum(-1, keepdim=True), axes) / width
        variance = wires.reduce((centred * centred).sum(-1, keepdim=True), axes) / width
        scale = (variance + eps).rsqrt()
        normalised = centred * scale
        ctx.job = wires, axes, width
        ctx.save_for_backward(normalised, scale)
        return normalised

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wires, axes, width = ctx.job
        normalised, scale = ctx.saved_tensors
        (dy,) = gradients
        sums = torch.stack((dy.sum(-1, keepdim=True), (dy * normalised).sum(-1, keepdim=True)))
        mean, along = wires.reduce(sums, axes) / width
        return (dy - mean - normalised * along) * scale, None, None, None, None


RULES[F.layer_norm] = layer_norm
