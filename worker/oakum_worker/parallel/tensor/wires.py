"""A rank's process groups along the axes of its grid, and the collectives over them as autograd functions.

Elements that a rank receives are counted as a ring moves them: (n-1)/n of the whole in an all-gather or a
reduce-scatter over n ranks, twice that in an all-reduce.

A value that ranks along an axis have in common has its complete gradient on each of them. `copy_then_sum` says
where such a value begins to be used differently on each rank, `sum_then_copy` where partial values become a common
one; they are each other's backward pass, as `gather_then_scatter` and `scatter_then_gather` are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.distributed as dist

from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.parallel.tensor.grids import ALL_AXES, Axes, Axis, Grid, cut
from oakum_worker.parallel.tensor.placements import Split
from oakum_worker.parallel.waiting import all_gather_flat, wait_for


class Group(Protocol):
    """The methods of `dist.ProcessGroup` that are used here."""

    _allgather_base: Any
    alltoall_base: Any
    allreduce: Any


class Pieces(NamedTuple):
    """How one dimension of a tensor is divided among the ranks along an axis."""

    axis: Axis
    dim: int
    sizes: Sequence[int]
    """Each rank's length of the dimension."""


class Wires:
    """One rank's connections along the axes of its grid. Counts the elements that come through them."""

    def __init__(self, grid: Grid, rank: int | None, groups: Mapping[Axis, Group | None]) -> None:
        """`rank` is the rank's number in the grid, None for a process that holds whole tensors alone."""
        self.grid = grid
        self.rank = rank
        self.received = 0
        """Elements that this rank has received so far."""
        self._groups = groups
        self._place = grid.coordinates(rank) if rank is not None else dict.fromkeys(ALL_AXES, 0)
        self._lengths = grid.lengths if rank is not None else dict.fromkeys(ALL_AXES, 1)

    @classmethod
    def form(cls, grid: Grid, members: Sequence[int], rank: int, subgroups: Subgroups, name: str = "") -> Self:
        """Connect this process, rank `rank` of the generation, to the other ranks of its grid. `members` are the
        grid's ranks in the generation, in the grid's order. Collective among the members, all of which give the
        same `name`. Raises `GroupError` when one is gone."""
        place = members.index(rank)
        groups: dict[Axis, Any] = {}
        for axis in ALL_AXES:
            ranks = [members[other] for other in grid.group_of(place, (axis,))]
            groups[axis] = subgroups.form(f"tensor-{name}-{axis}-{'-'.join(map(str, ranks))}", ranks)
        return cls(grid, place, groups)

    @classmethod
    def alone(cls, grid: Grid) -> Self:
        """Wires without connections, for one process that holds whole tensors and plans how they are cut on the
        grid."""
        return cls(grid, None, {})

    def own(self, units: int, axes: Axes) -> range:
        """The numbers of this rank's units, of a dimension with `units` units that is cut along `axes`."""
        return cut(units, [(self._lengths[axis], self._place[axis]) for axis in axes])

    def shares(self, units: int, axes: Axes) -> list[int]:
        """Number of units of each rank along the last of `axes`, out of the block that this rank's coordinates
        along the axes before it select."""
        *before, last = axes
        block = len(self.own(units, tuple(before)))
        length = self._lengths[last]
        return [len(cut(block, [(length, place)])) for place in range(length)]

    def divides(self, split: Split) -> bool:
        """Whether the grid cuts the split's units into blocks of equal size."""
        lengths = self.grid.lengths
        return split.units % math.prod(lengths[axis] for axis in split.axes) == 0

    def multi_rank_axes(self, axes: Axes) -> Axes:
        """The axes among `axes` along which the grid has more than one rank."""
        return tuple(axis for axis in axes if self._lengths[axis] > 1)

    def gather(self, tensor: torch.Tensor, pieces: Pieces | None) -> torch.Tensor:
        """The tensor put together from one piece of each rank along the pieces' axis; collective among them. With
        `pieces` None, or a single rank, the tensor itself."""
        if pieces is None or not self.multi_rank_axes((pieces.axis,)):
            return tensor
        axis, dim, sizes = pieces
        largest = max(sizes)
        own = tensor.movedim(dim, 0)
        rest = own.shape[1:]
        if len(own) < largest:
            own = torch.cat((own, own.new_zeros(largest - len(own), *rest)))
        flat = own.contiguous().view(-1)
        gathered = flat.new_empty(len(sizes) * flat.numel())
        if gathered.numel():
            all_gather_flat(gathered, flat, self._groups[axis])  # type: ignore[arg-type]
        self.received += (sum(sizes) - tensor.shape[dim]) * rest.numel()
        whole = gathered.view(len(sizes), largest, *rest)
        if largest * len(sizes) == sum(sizes):
            return whole.flatten(0, 1).movedim(0, dim)
        return torch.cat([part[:size] for part, size in zip(whole, sizes, strict=True)]).movedim(0, dim)

    def scatter(self, tensor: torch.Tensor, pieces: Pieces | None) -> torch.Tensor:
        """This rank's piece of the sum of the tensors of all ranks along the pieces' axis; collective among them.
        With `pieces` None, or a single rank, the tensor itself.

        Each rank adds up in the order of the ranks, so the sum does not depend on who computes it.
        """
        if pieces is None or not self.multi_rank_axes((pieces.axis,)):
            return tensor
        axis, dim, sizes = pieces
        parts = tensor.movedim(dim, 0)
        rest = parts.shape[1:]
        own = sizes[self._place[axis]]
        flat = parts.contiguous().view(-1)
        del tensor, parts  # a caller who keeps none of it has it freed here where `flat` is a copy
        arrived = flat.new_empty(len(sizes) * own * rest.numel())
        if flat.numel():
            takes, gives = [own * rest.numel()] * len(sizes), [size * rest.numel() for size in sizes]
            wait_for(self._group(axis).alltoall_base(arrived, flat, takes, gives), arrived)
        del flat
        self.received += (len(sizes) - 1) * own * rest.numel()
        return arrived.view(len(sizes), own, *rest).sum(0).movedim(0, dim)

    def reduce(
        self, tensor: torch.Tensor, axes: Axes, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """The sum (or what `op` makes) of the tensors of all ranks along `axes`, in new memory; collective among
        them."""
        total = tensor.clone(memory_format=torch.contiguous_format)
        for axis in self.multi_rank_axes(axes):
            options = dist.AllreduceOptions()
            options.reduceOp = op  # type: ignore[assignment]
            if total.numel():
                wait_for(self._group(axis).allreduce([total], options), total)
            self.received += 2 * total.numel() * (self._lengths[axis] - 1) // self._lengths[axis]
        return total

    def _group(self, axis: Axis) -> Any:
        return self._groups[axis]


def gather_then_scatter(wires: Wires, tensor: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    """The whole tensor, put together from the pieces of all ranks along an axis, for a computation that differs
    from rank to rank. Collective, also in its backward pass, which sums the ranks' gradients and gives each
    rank its piece of the sum."""
    return _GatherThenScatter.apply(tensor, wires, pieces)


def gather_then_cut(wires: Wires, tensor: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    """The whole tensor, put together from the pieces of all ranks along an axis, for a computation that is the
    same on all ranks. Collective; the backward pass is not: it takes this rank's piece of the gradient."""
    return _GatherThenCut.apply(tensor, wires, pieces)


def scatter_then_gather(wires: Wires, tensor: torch.Tensor, pieces: Pieces) -> torch.Tensor:
    """This rank's piece of the sum of the ranks' tensors. Collective, also in its backward pass, which puts the
    gradient together from the ranks' pieces."""
    return _ScatterThenGather.apply(tensor, wires, pieces)


def sum_then_copy(wires: Wires, tensor: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The sum of the tensors of all ranks along `axes`, for a computation that is the same on all of them.
    Collective; the backward pass is not: each rank's tensor gets the gradient of the sum."""
    return _SumThenCopy.apply(tensor, wires, axes) if wires.multi_rank_axes(axes) else tensor


def copy_then_sum(wires: Wires, tensor: torch.Tensor, axes: Axes) -> torch.Tensor:
    """The tensor itself, which is equal on all ranks along `axes`, for a computation that differs from rank to
    rank. The backward pass is collective: it sums the gradients over these ranks."""
    return (
        _CopyThenSum.apply(tensor, wires, axes) if tensor.requires_grad and wires.multi_rank_axes(axes) else tensor
    )


class _GatherThenScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wires: Wires, pieces: Pieces) -> torch.Tensor:
        ctx.job = wires, pieces
        return _view_if_argument(wires.gather(tensor, pieces), tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wires, pieces = ctx.job
        return wires.scatter(gradients[0], pieces), None, None


class _GatherThenCut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wires: Wires, pieces: Pieces) -> torch.Tensor:
        ctx.job = wires, pieces
        return _view_if_argument(wires.gather(tensor, pieces), tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wires, pieces = ctx.job
        own = wires._place[pieces.axis]
        return gradients[0].narrow(pieces.dim, sum(pieces.sizes[:own]), pieces.sizes[own]), None, None


class _ScatterThenGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wires: Wires, pieces: Pieces) -> torch.Tensor:
        ctx.job = wires, pieces
        return _view_if_argument(wires.scatter(tensor, pieces), tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wires, pieces = ctx.job
        return wires.gather(gradients[0], pieces), None, None


class _SumThenCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wires: Wires, axes: Axes) -> torch.Tensor:
        return wires.reduce(tensor, axes)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None, None


class _CopyThenSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, wires: Wires, axes: Axes) -> torch.Tensor:
        ctx.job = wires, axes
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        wires, axes = ctx.job
        return wires.reduce(gradients[0], axes), None, None


def _view_if_argument(result: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
    """The result, or a view of it if it is the very argument: an autograd function must not return its
    argument."""
    return result.view_as(result) if result is argument else result
