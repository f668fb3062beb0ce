"""Dropout whose masks belong to samples and positions: each rank draws its block of one process's mask."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut
from oakum_worker.randomness.batch_dims import batch_dim
from oakum_worker.randomness.keyed import KeyedBits, threshold
from oakum_worker.randomness.sample_randomness import present_samples
from oakum_worker.torch_internals import DisableTorchFunction


def dropout(
    func: Any, work: Work, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    """Rule for dropout of single elements, which drops the elements that one process would drop. Returns a spread
    tensor cut as `input` is; where `input` is not cut, what torch's function returns for it."""
    if not isinstance(input, Spread) or not input.axes:
        return answer_uncut(work, func, (input, p, training), {})
    if not training or not 0 < p < 1:
        return Spread(func(input.local, p, training), input.shape, input.splits, work)
    return dropped(work, input, p)


def dropped(work: Work, x: Spread, p: float, *, at_front: bool = False) -> Spread:
    """`x` after dropout with probability `p`, with the mask that one process would draw for the whole tensor. With
    `at_front` the samples lie along the first dimension, as in attention's weights."""
    mask = _keep(work, x, p, at_front=at_front)
    return Spread((x.local * mask).mul_(1 / (1 - p)), x.shape, x.splits, work)


def _keep(work: Work, x: Spread, p: float, *, at_front: bool) -> torch.Tensor:
    """This rank's block of a mask that is drawn for the whole tensor: True where elements are kept."""
    present = present_samples()
    device, shape = x.local.device, tuple(x.shape)
    looked_at = shape[:1] if at_front else shape
    dim = batch_dim(looked_at, present[2], "activation") if present is not None else None
    split = x.splits[dim] if dim is not None else None
    if present is None or dim is None or split is None or split.units != present[2]:
        if present is None:
            whole = torch.empty(shape, device=device).uniform_() < 1 - p
        else:
            whole = _bits(present, shape, device, at_front=at_front) < threshold(1 - p)
        return _cut(work, whole, x, skip=None)
    key, first, _ = present
    own = work.wires.own(split.units, split.axes)
    drawn = max(len(own), 1)  # also without samples, since all ranks' generators have to advance
    of_one = shape[dim] // split.units
    rows = list(shape)
    rows[dim] = of_one * drawn
    mask = _bits((key, first + own.start, drawn), tuple(rows), device, at_front=at_front) < threshold(1 - p)
    return _cut(work, mask.narrow(dim, 0, of_one * len(own)), x, skip=dim)


def _bits(
    present: tuple[int, int, int], shape: tuple[int, ...], device: torch.device, *, at_front: bool
) -> torch.Tensor:
    """Random int32 bits for the samples `present`, as `present_samples` gives them. Advances torch's default
    generator, which has equal states on all ranks."""
    keyed = KeyedBits()
    with DisableTorchFunction():  # a mode that draws for samples would answer for what is drawn here
        keyed.begin(*present, device)
        return keyed.bits(shape, device, "activation", at_front=at_front)


def _cut(work: Work, mask: torch.Tensor, x: Spread, *, skip: int | None) -> torch.Tensor:
    """This rank's block of a whole mask with the shape of `x`. Dimension `skip` (None: none) has been cut
    already."""
    for dim, split in enumerate(x.splits):
        if dim != skip and split is not None and split.axes:
            mask = work.narrow(mask, dim, x.shape[dim], split)
    return mask


for _func in (F.dropout, torch.dropout):
    RULES[_func] = partial(dropout, _func)
