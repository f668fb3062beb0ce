"""A spread tensor: a tensor of which each rank of a grid has one block, and which has the whole tensor's shape.

The user's code computes with spread tensors as with any others. Each torch function that is called with one is
answered by a rule, found by the function in `RULES`, which `operations` fills. A function without a rule works on
a spread tensor that is not cut, since all ranks have all of it, and is refused on any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.parallel.tensor.grids import Axes
from oakum_worker.parallel.tensor.placements import Placement, Split, Splits, axes_of
from oakum_worker.parallel.tensor.wires import Pieces, Wires, copy_then_sum, gather_then_cut, gather_then_scatter
from oakum_worker.torch_internals import DisableTorchFunction, tree_leaves, tree_map, wrapper_tensor

Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}
"""torch's function -> `rule(work, *arguments of the function)`."""


class Placing(Protocol):
    """Interface of what knows, or decides, how parameters are cut."""

    def placement_of(self, parameter: nn.Parameter) -> Placement | None:
        """The parameter's placement; None where it has not been placed, or is no parameter of the model."""

    def place(self, parameter: nn.Parameter, splits: Splits, role: str) -> Placement:
        """Place a parameter that has no placement yet, with dimensions cut by `splits`; returns its placement."""

    def fold(self, parameters: Sequence[nn.Parameter], fold: int) -> bool:
        """Cut the first dimension of these parameters within each of `fold` sections. Returns False where that is
        no longer possible."""


@dataclass(frozen=True)
class Work:
    """One computation on a grid, as rules need to know it: the rank's connections, the placements, and the
    micro-batch's size."""

    wires: Wires
    placing: Placing
    num_samples: int
    """Samples of the micro-batch that the grid computes."""
    keep_gathered: bool = False
    """Keep what linear layers have gathered until the backward pass, instead of gathering it again there."""

    def pieces(self, split: Split, dim: int, length: int) -> Pieces:
        """The pieces along the split's last axis of a dimension that is `length` long in the whole tensor."""
        inner = length // (split.units * split.fold)
        return Pieces(split.axes[-1], dim, [n * inner for n in self.wires.shares(split.units, split.axes)])

    def local_length(self, length: int, split: Split | None) -> int:
        """Length that a dimension has on this rank if it is `length` long in the whole tensor and cut by
        `split`."""
        if split is None:
            return length
        return length // split.units * len(self.wires.own(split.units, split.axes))

    def cut_again(
        self, tensor: torch.Tensor, dim: int, length: int, have: Split | None, want: Split
    ) -> torch.Tensor:
        """This rank's part, by the split `want`, of dimension `dim`; `tensor` has this rank's part by the split
        `have` (None: the whole). `length` is the whole dimension's."""
        if have is None or not have.axes:
            return self.narrow(tensor, dim, length, want)
        if have.axes == want.axes:
            return tensor
        inner = length // want.units
        held, own = self.wires.own(want.units, have.axes), self.wires.own(want.units, want.axes)
        return tensor.narrow(dim, (own.start - held.start) * inner, len(own) * inner)

    def narrow(self, tensor: torch.Tensor, dim: int, length: int, split: Split) -> torch.Tensor:
        """This rank's part, by `split`, of dimension `dim`, of which `tensor` has the whole `length`."""
        own = self.wires.own(split.units, split.axes)
        if len(own) == split.units:
            return tensor
        inner = length // (split.units * split.fold)
        if split.fold == 1:
            return tensor.narrow(dim, own.start * inner, len(own) * inner)
        section = length // split.fold
        parts = [tensor.narrow(dim, n * section + own.start * inner, len(own) * inner) for n in range(split.fold)]
        return torch.cat(parts, dim)


class Spread(torch.Tensor):
    """A tensor with the shape of a whole tensor, of which this rank has the block `local`. Cannot be used outside
    `computing`."""

    local: torch.Tensor
    splits: Splits
    """One for each dimension; the sample dimension of what is not cut has a split without axes."""
    work: Work
    makers: tuple[nn.Parameter, ...]
    """The weight, and the bias, of the linear layer whose output this is, as long as nothing has changed it."""

    @staticmethod
    def __new__(
        cls,
        local: torch.Tensor,
        shape: Sequence[int],
        splits: Splits,
        work: Work,
        makers: tuple[nn.Parameter, ...] = (),
    ) -> Spread:
        spread = wrapper_tensor(cls, shape, local)
        assert len(splits) == len(shape)
        spread.local, spread.splits, spread.work, spread.makers = local, splits, work, makers
        return spread

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Spread({tuple(self.shape)}, this rank's {tuple(self.local.shape)}, {self.splits})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return answer(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise TaskError(f"tensor parallelism cannot compute {func}: compute it with torch's functions of tensors")

    @property
    def axes(self) -> Axes:
        """The axes along which the tensor is cut."""
        return axes_of(self.splits)


_LOOKS = {
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "ndim",
        "requires_grad",
        "is_nested",
        "layout",
        "is_sparse",
        "is_cuda",
    )
} | {
    getattr(torch.Tensor, name)
    for name in ("dim", "size", "numel", "nelement", "is_floating_point", "is_complex", "__len__", "stride")
}
_LOOKS |= {torch.is_floating_point, torch.is_complex, torch.numel, torch.Tensor.is_contiguous}


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function that was called with a spread tensor. The computation to which it belongs is
    found from that tensor."""
    if func in _LOOKS or func is torch.Tensor.__repr__:
        with DisableTorchFunction():
            return func(*args, **kwargs)
    work = next(leaf.work for leaf in leaves(args, kwargs) if isinstance(leaf, Spread))
    return answer_in(work, func, args, kwargs)


def answer_in(work: Work, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function that takes part in the computation `work`. It comes from the function's
    rule; without a rule, from the function itself on tensors that are not cut. Raises `TaskError` if there is
    no rule and a tensor is cut."""
    if func in _LOOKS:
        return func(*args, **kwargs)
    rule = RULES.get(func)
    if rule is not None:
        return rule(work, *args, **kwargs)
    return answer_uncut(work, func, args, kwargs)


def answer_uncut(work: Work, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a torch function that has no rule, computed on tensors that every rank has in full. Parameters
    that are not placed yet stay whole. Raises `TaskError` if a tensor or a parameter is cut."""
    for leaf in leaves(args, kwargs):
        if isinstance(leaf, Spread) and leaf.axes:
            refuse(func, f"of a tensor of shape {tuple(leaf.shape)}, of which each rank has a block")
        if isinstance(leaf, nn.Parameter):
            placement = work.placing.placement_of(leaf) or work.placing.place(leaf, (None,) * leaf.ndim, "whole")
            if placement.axes:
                refuse(func, f"of a {placement.role} of shape {placement.shape}, of which each rank has a block")
    args, kwargs = tree_map(_local_of, (args, kwargs))
    return tree_map(lambda result: of_batch(work, result), func(*args, **kwargs))


def of_batch(work: Work, result: Any) -> Any:
    """The tensor, marked as one whose first dimension counts the micro-batch's samples, if that dimension is as
    long as there are samples. Any other value is returned unchanged."""
    if not isinstance(result, torch.Tensor) or isinstance(result, Spread):
        return result
    if result.ndim == 0 or result.shape[0] != work.num_samples or isinstance(result, nn.Parameter):
        return result
    return Spread(result, result.shape, (Split((), work.num_samples), *(None,) * (result.ndim - 1)), work)


def refuse(func: Any, what: str) -> None:
    """Raise a `TaskError` that says that tensor parallelism cannot compute `func`, with `what` as the
    circumstances, and what to use instead."""
    name = getattr(func, "__qualname__", None) or getattr(func, "__name__", str(func))
    raise TaskError(
        f"tensor parallelism cannot compute {name} {what}: use linear layers, embeddings, layer norms, attention "
        "and functions of single elements, or train without parallel.tensor"
    )


def leaves(*trees: Any) -> Iterator[Any]:
    """Yield the values in nested tuples, lists and dicts."""
    yield from tree_leaves(trees)


def made_like(like: Spread, local: torch.Tensor) -> Spread:
    """A spread tensor with the block `local`, and with the shape and the splits of `like`."""
    return Spread(local, like.shape, like.splits, like.work)


def closed(local: torch.Tensor, shape: Sequence[int], splits: Splits, work: Work) -> torch.Tensor:
    """The result of a rule from this rank's block: a spread tensor, or the block itself, as a plain tensor, where
    `splits` has no dimension that is cut or has samples."""
    if all(split is None for split in splits):
        return local
    return Spread(local, shape, splits, work)


def block(work: Work, value: torch.Tensor, shape: Sequence[int], splits: Splits, role: str) -> torch.Tensor:
    """This rank's block, by `splits`, of a value that broadcasts to `shape`.

    The gradients of ranks that have the same block are summed. A parameter that is used for the first time is
    placed by `splits`, in its `role`.
    """
    value = known(work, value)
    offset = len(shape) - value.ndim
    wanted = tuple(
        split if length == shape[dim + offset] else None
        for dim, (length, split) in enumerate(zip(value.shape, splits[offset:], strict=True))
    )
    if isinstance(value, nn.Parameter):
        value = spread_parameter(work, value, _of_features(wanted), role)
    spread = value if isinstance(value, Spread) else Spread(value, value.shape, (None,) * value.ndim, work)
    return arranged(spread, wanted, axes_of(splits)).local


def known(work: Work, value: torch.Tensor) -> torch.Tensor:
    """The value, or for a parameter that has a placement the spread tensor that stands for the whole parameter."""
    placement = work.placing.placement_of(value) if isinstance(value, nn.Parameter) else None
    return value if placement is None else closed(value, placement.shape, placement.splits, work)


def spread_parameter(work: Work, parameter: nn.Parameter, splits: Splits, role: str) -> torch.Tensor:
    """The parameter as a spread tensor, or as it is where every rank has all of it. A parameter without a
    placement is first placed by `splits`, in its `role`."""
    placement = work.placing.placement_of(parameter) or work.placing.place(parameter, splits, role)
    return closed(parameter, placement.shape, placement.splits, work)


def _of_features(splits: Splits) -> Splits:
    """The splits with None in place of those by which samples are cut, which no parameter has."""
    return tuple(None if split is None or split.axes[:1] in ((), ("i",)) else split for split in splits)


def arranged(value: Spread, splits: Splits, used_along: Axes) -> Spread:
    """The value cut by `splits`, for a computation that differs between ranks along the axes `used_along`.
    Dimensions that are cut in another way are gathered as far as necessary and cut again, which is collective.
    Raises `TaskError` where a dimension of several sections would have to be cut in another way than it is."""
    work, local, wires = value.work, value.local, value.work.wires
    held: list[Split | None] = list(value.splits)
    for dim, (have, want) in enumerate(zip(value.splits, splits, strict=True)):
        if have is None or not have.axes:
            continue
        kept = _common_axes(have, want, wires)
        if have.fold > 1 and kept != have.axes:
            raise TaskError(_complaint_of_sections(value, dim, have))
        axes = have.axes
        while axes != kept:
            do = gather_then_scatter if axes[-1] in used_along else gather_then_cut
            local = do(wires, local, work.pieces(replace(have, axes=axes), dim, value.shape[dim]))
            axes = axes[:-1]
        held[dim] = replace(have, axes=axes)
    local = copy_then_sum(wires, local, tuple(axis for axis in used_along if axis not in value.axes))
    for dim, want in enumerate(splits):
        if want is not None and want.axes:
            local = work.cut_again(local, dim, value.shape[dim], held[dim], want)
            held[dim] = want
    return Spread(local, value.shape, tuple(held), work)


def _complaint_of_sections(value: Spread, dim: int, have: Split) -> str:
    return (
        f"tensor parallelism cannot compute this step on a tensor of shape {tuple(value.shape)}: its dimension "
        f"{dim} has {have.fold} sections side by side (flattened positions, or queries, keys and values of one "
        "projection), and each rank has a part of every section: take the mean over the positions instead of "
        "flattening them, use the sections one by one, or train without parallel.tensor"
    )


def _common_axes(have: Split, want: Split | None, wires: Wires) -> Axes:
    """The longest common beginning of both splits' axes along which they give each rank the same block; empty if
    `want` is None, has another number of sections, or has other units that the grid cuts into unequal blocks."""
    if want is None or have.fold != want.fold:
        return ()
    if have.units != want.units and not (wires.divides(have) and wires.divides(want)):
        return ()
    count = 0
    while have.axes[: count + 1] == want.axes[: count + 1] and count < len(have.axes):
        count += 1
    return have.axes[:count]


def _local_of(value: Any) -> Any:
    return value.local if isinstance(value, Spread) else value
