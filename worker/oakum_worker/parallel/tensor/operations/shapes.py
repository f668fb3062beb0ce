"""Functions that move, merge and divide dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from oakum_worker.parallel.tensor.placements import Split, Splits
from oakum_worker.parallel.tensor.spread import RULES, Spread, Work, answer_uncut, arranged, refuse

_MOST_SECTIONS = 4
"""A first dimension up to this size, of three, divides a fused projection: (3, heads, width of a head)."""


class _Group(NamedTuple):
    """Neighbouring dimensions before a change of shape, and those after it that have the same elements."""

    old: range
    new: range


def rule(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the rule for a function that changes shapes: it calls `function(work, input, ...)` for a spread tensor,
    and torch's own function for a tensor that is not spread."""

    def answer(func: Any, work: Work, input: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(input, Spread) or not any(input.splits):
            return answer_uncut(work, func, (input, *args), kwargs)
        return function(work, input, *args, **kwargs)

    return answer


def reshaped(x: Spread, shape: Sequence[int]) -> Spread:
    """The tensor in another shape. A dimension that is cut can be merged with others or divided, as far as each
    rank's block stays a block. Raises `TaskError` where it does not."""
    shape = _completed(x, shape)
    splits: list[Split | None] = [None] * len(shape)
    for group in _groups(x.shape, shape):
        cut = [dim for dim in group.old if x.splits[dim] is not None]
        if cut:
            x = _one_cut(x, cut)
            place, split = _moved(x, group, cut[0], shape)
            splits[place] = split
    local = [x.work.local_length(length, split) for length, split in zip(shape, splits, strict=True)]
    return Spread(x.local.reshape(local), shape, tuple(splits), x.work)


def _one_cut(x: Spread, cut: list[int]) -> Spread:
    really = [dim for dim in cut if x.splits[dim].axes]  # type: ignore[union-attr]
    if len(really) > 1:
        refuse(torch.reshape, f"that merges two cut dimensions of a tensor of shape {tuple(x.shape)}")
    return x


def _completed(x: Spread, shape: Sequence[int]) -> tuple[int, ...]:
    known = math.prod(length for length in shape if length != -1)
    return tuple(x.shape.numel() // known if length == -1 else length for length in shape)


def _groups(old: Sequence[int], new: Sequence[int]) -> list[_Group]:
    """Split both shapes into the smallest groups of neighbouring dimensions that have equal numbers of elements,
    in order."""
    groups, o, n = [], 0, 0
    while o < len(old) or n < len(new):
        start_o, start_n, before, after = o, n, 1, 1
        if o < len(old):
            before, o = old[o], o + 1
        if n < len(new):
            after, n = new[n], n + 1
        while before != after:
            if before < after:
                before, o = before * old[o], o + 1
            else:
                after, n = after * new[n], n + 1
        groups.append(_Group(range(start_o, o), range(start_n, n)))
    return groups


def _moved(x: Spread, group: _Group, dim: int, shape: tuple[int, ...]) -> tuple[int, Split]:
    """(number of the dimension after the change of shape that is cut, its split), for the cut dimension `dim` of a
    group. Raises `TaskError` where no single dimension can be cut so."""
    split = x.splits[dim]
    assert split is not None
    lead = math.prod(x.shape[number] for number in group.old if number < dim)
    new = [shape[number] for number in group.new]
    split = _refolded(x, dim, split, new) if lead == 1 else split
    sections, units = lead * split.fold, split.units
    for number, length in zip(group.new, new, strict=True):
        if length == 1 and len(new) > 1 and sections * units > 1:
            continue
        if sections % length == 0 and sections > 1 and length < sections * 2:
            sections //= length
            continue
        if length % sections:
            break
        rest = length // sections
        divides = math.prod(x.work.wires.grid.lengths[axis] for axis in split.axes)
        if rest % units == 0:
            return number, Split(split.axes, units, sections)
        if units % rest == 0 and rest % divides == 0 and units % divides == 0:
            return number, Split(split.axes, rest, sections)
        break
    refuse(
        torch.reshape,
        f"of shape {tuple(x.shape)} to {shape}: the grid's side has to divide what a cut dimension is "
        "divided into, such as the number of heads",
    )
    raise AssertionError


def _refolded(x: Spread, dim: int, split: Split, new: list[int]) -> Split:
    """The split of dimension `dim` for a division into lengths `new`. If that is how the output of a fused
    projection is divided, (sections, heads, width), it is cut within each section from now on; otherwise the split
    stays."""
    if split.fold > 1 or not x.makers or dim != x.ndim - 1 or len(new) < 3 or new[0] > _MOST_SECTIONS:
        return split
    return _fold(x, new[0])


def _fold(x: Spread, sections: int) -> Split:
    """Treat the last dimension of a linear layer's output as `sections` sections, each cut along the grid's
    axes by itself. Returns the dimension's split: the new one, or the present one, unchanged, where the layer's
    parameters can no longer be cut like that."""
    split = x.splits[-1]
    assert split is not None
    if split.fold == 1 and x.work.placing.fold(x.makers, sections):
        return replace(split, units=x.shape[-1] // sections, fold=sections)
    return split


def _reshape(work: Work, x: Spread, *shape: Any, **named: Any) -> Any:
    given = named.get("shape", shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
    return reshaped(x, given)


def _flatten(work: Work, x: Spread, start_dim: int = 0, end_dim: int = -1) -> Spread:
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return reshaped(x, (*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _unflatten(work: Work, x: Spread, dim: int, sizes: Sequence[int]) -> Spread:
    at = dim % x.ndim
    known = math.prod(size for size in sizes if size != -1)
    full = [x.shape[at] // known if size == -1 else size for size in sizes]
    return reshaped(x, (*x.shape[:at], *full, *x.shape[at + 1 :]))


def _permuted(x: Spread, order: Sequence[int]) -> Spread:
    order = [dim % x.ndim for dim in order]
    shape = [x.shape[dim] for dim in order]
    return Spread(x.local.permute(order), shape, tuple(x.splits[dim] for dim in order), x.work)


def _transpose(work: Work, x: Spread, dim0: int, dim1: int) -> Spread:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return _permuted(x, order)


def _permute(work: Work, x: Spread, *dims: Any) -> Spread:
    return _permuted(x, dims[0] if len(dims) == 1 and not isinstance(dims[0], int) else dims)


def _t(work: Work, x: Spread) -> Spread:
    return _permuted(x, range(x.ndim)[::-1])


def _unsqueeze(work: Work, x: Spread, dim: int) -> Spread:
    at = dim % (x.ndim + 1)
    shape, splits = list(x.shape), list(x.splits)
    shape.insert(at, 1)
    splits.insert(at, None)
    return Spread(x.local.unsqueeze(at), shape, tuple(splits), x.work)


def _squeeze(work: Work, x: Spread, dim: int | None = None) -> Spread:
    if dim is None:
        refuse(torch.squeeze, "without dim=")
    assert dim is not None
    return x if x.shape[dim] != 1 else _without(x, dim % x.ndim, x.local.squeeze(dim))


def _without(x: Spread, dim: int, local: torch.Tensor) -> Spread:
    keep = [number for number in range(x.ndim) if number != dim]
    return Spread(local, [x.shape[n] for n in keep], tuple(x.splits[n] for n in keep), x.work)


def _chunk(work: Work, x: Spread, chunks: int, dim: int = 0) -> tuple[Spread, ...]:
    length = x.shape[dim]
    return _split(work, x, -(-length // chunks), dim)


def _split(work: Work, x: Spread, size: int | Sequence[int], dim: int = 0, **named: Any) -> tuple[Spread, ...]:
    at, size = dim % x.ndim, named.get("split_size_or_sections", named.get("split_size", size))
    length = x.shape[at]
    sizes = list(size) if not isinstance(size, int) else [min(size, length - o) for o in range(0, length, size)]
    split = x.splits[at]
    if split is None or not split.axes:
        parts: Sequence[torch.Tensor] = x.local.split(sizes, at)
        return tuple(_resized(x, at, part, n, split) for part, n in zip(parts, sizes, strict=True))
    if len(set(sizes)) > 1 or at != x.ndim - 1:
        refuse(torch.split, f"of a cut dimension of a tensor of shape {tuple(x.shape)} into parts of {sizes}")
    split = _fold(x, len(sizes)) if x.makers else split
    if split.fold != len(sizes):
        refuse(torch.split, f"of a cut dimension of shape {tuple(x.shape)}, but right behind its linear layer")
    return tuple(_resized(x, at, part, sizes[0], replace(split, fold=1)) for part in x.local.chunk(len(sizes), at))


def _resized(x: Spread, dim: int, local: torch.Tensor, length: int, split: Split | None) -> Spread:
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    kept = split if split is None or length % (split.units * split.fold) == 0 else None
    return Spread(local, shape, (*x.splits[:dim], kept, *x.splits[dim + 1 :]), x.work)


def _unbind(work: Work, x: Spread, dim: int = 0) -> tuple[Spread, ...]:
    at = dim % x.ndim
    _uncut_at(torch.unbind, x, at)
    return tuple(_without(x, at, part) for part in x.local.unbind(at))


def _select(work: Work, x: Spread, dim: int, index: int) -> Spread:
    at = dim % x.ndim
    _uncut_at(torch.select, x, at)
    return _without(x, at, x.local.select(at, index))


def _narrow(work: Work, x: Spread, dim: int, start: int, length: int) -> Spread:
    at = dim % x.ndim
    if start == 0 and length == x.shape[at]:
        return x
    _uncut_at(torch.narrow, x, at)
    return _resized(x, at, x.local.narrow(at, start, length), length, None)


def _uncut_at(func: Any, x: Spread, dim: int) -> None:
    if x.splits[dim] is not None:
        refuse(func, f"along dimension {dim}, which is cut, of a tensor of shape {tuple(x.shape)}")


def _item(work: Work, x: Spread, index: Any) -> Any:
    """Rule for `x[index]`: returns the result for a spread tensor. Raises `TaskError` for an index that takes
    only some of a cut dimension, or that is a tensor or a list."""
    given = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(part, torch.Tensor | list) for part in given):
        if not x.axes:
            return answer_uncut(work, torch.Tensor.__getitem__, (x, index), {})
        refuse(torch.Tensor.__getitem__, f"by a tensor or list, of a tensor of shape {tuple(x.shape)}")
    missing = x.ndim - sum(part is not None and part is not Ellipsis for part in given)
    at = next((n for n, part in enumerate(given) if part is Ellipsis), None)
    if at is not None:
        given[at : at + 1] = [slice(None)] * missing
    selected, dim = x, 0
    for part in given:
        if part is None:
            selected, dim = _unsqueeze(work, selected, dim), dim + 1
        elif isinstance(part, slice):
            selected, dim = _sliced(selected, dim, part), dim + 1
        else:
            selected = _select(work, selected, dim, part)
    return selected


def _sliced(x: Spread, dim: int, part: slice) -> Spread:
    start, stop, step = part.indices(x.shape[dim])
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    _uncut_at(torch.Tensor.__getitem__, x, dim)
    local = x.local[(slice(None),) * dim + (part,)]
    return _resized(x, dim, local, local.shape[dim], None)


def _cat(func: Any, work: Work, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    """Rule for `torch.cat`: returns the joined spread tensor. Raises `TaskError` along a dimension that is cut,
    or for tensors of which only some belong to the batch."""
    first = next((value for value in tensors if isinstance(value, Spread) and value.axes), None)
    if first is None:
        return answer_uncut(work, func, (tensors, dim), {})
    at = dim % first.ndim
    _uncut_at(func, first, at)
    if not all(isinstance(value, Spread) for value in tensors):
        refuse(func, "of tensors of the batch with others")
    parts = [arranged(value, first.splits, first.axes) for value in tensors]  # type: ignore[arg-type]
    length = sum(part.shape[at] for part in parts)
    return _resized(first, at, torch.cat([part.local for part in parts], at), length, None)


def _expand(work: Work, x: Spread, *sizes: Any) -> Spread:
    shape = list(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
    offset = len(shape) - x.ndim
    splits: Splits = (*(None,) * offset, *x.splits)
    for dim in range(x.ndim):
        shape[dim + offset] = x.shape[dim] if shape[dim + offset] == -1 else shape[dim + offset]
    local = [n if split is None else x.work.local_length(n, split) for n, split in zip(shape, splits, strict=True)]
    return Spread(x.local.expand(local), shape, splits, x.work)


def _getter(name: str) -> Any:
    """The function that a torch function mode sees when code reads the attribute `name` of a tensor."""
    return getattr(torch.Tensor, name).__get__


_RULES: dict[str, Callable[..., Any]] = {
    "reshape": _reshape,
    "view": _reshape,
    "flatten": _flatten,
    "unflatten": _unflatten,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "permute": _permute,
    "t": _t,
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "chunk": _chunk,
    "split": _split,
    "unbind": _unbind,
    "select": _select,
    "narrow": _narrow,
    "expand": _expand,
    "__getitem__": _item,
}
for _name, _rule in _RULES.items():
    for _home in (torch, torch.Tensor):
        if hasattr(_home, _name):
            RULES[getattr(_home, _name)] = partial(rule(_rule), getattr(_home, _name))
RULES[_getter("T")] = partial(rule(_t), torch.Tensor.t)
RULES[_getter("mT")] = partial(rule(lambda work, x: _transpose(work, x, -1, -2)), torch.Tensor.t)
RULES[torch.cat] = partial(_cat, torch.cat)
RULES[torch.concat] = partial(_cat, torch.cat)
