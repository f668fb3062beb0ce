"""Sums and means over some dimensions or all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.parallel.tensor.operations.elementwise import common_splits
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut, block, closed, refuse
from oakum_worker.parallel.tensor.wires import sum_then_copy

_PER_SAMPLE_KINDS = ("none", "mean", "sum")


def total(
    is_mean: bool,
    func: Any,
    work: Work,
    input: torch.Tensor,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Rule for `sum` and, with `is_mean`, `mean`: returns the result for a spread tensor. Collective along the
    axes by which the summed dimensions are cut."""
    if not isinstance(input, Spread) or not input.axes:
        options = {} if dim is None else {"dim": dim, "keepdim": keepdim}
        return answer_uncut(work, func, (input,), {**options, "dtype": dtype})
    given = range(input.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    dims = sorted(number % input.ndim for number in given)
    axes = tuple(axis for number in dims if (split := input.splits[number]) is not None for axis in split.axes)
    local = sum_then_copy(work.wires, input.local.sum(dims, keepdim=keepdim, dtype=dtype), axes)
    if is_mean:
        local = local / math.prod(input.shape[number] for number in dims)
    kept = [(1, None) if n in dims else (input.shape[n], input.splits[n]) for n in range(input.ndim)]
    if not keepdim:
        kept = [pair for number, pair in enumerate(kept) if number not in dims]
    return closed(local, [length for length, _ in kept], tuple(split for _, split in kept), work)


def loss_of_elements(
    func: Any, work: Work, input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any
) -> Any:
    """Rule for losses that compare two tensors element by element, such as `mse_loss`: returns the loss of
    spread tensors. Raises `TaskError` for weights and outdated options."""
    reduction = kwargs.pop("reduction", "mean")
    if args or reduction not in _PER_SAMPLE_KINDS or any(isinstance(v, torch.Tensor) for v in kwargs.values()):
        refuse(func, "with weights or old options: give reduction= and numbers alone")
    shape = torch.broadcast_shapes(input.shape, target.shape)
    splits = common_splits([input, target], shape)
    pair = [block(work, value, shape, splits, "vector") for value in (input, target)]
    losses = closed(func(*pair, reduction="none", **kwargs), shape, splits, work)
    return losses if reduction == "none" else getattr(losses, reduction)()


for _home in (torch, torch.Tensor):
    RULES[_home.sum] = partial(total, False, torch.sum)
    RULES[_home.mean] = partial(total, True, torch.mean)
for _func in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits):
    RULES[_func] = partial(loss_of_elements, _func)
