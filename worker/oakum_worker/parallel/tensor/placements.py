"""Says which block of a tensor each rank of a grid has, from the tensor's shape and its cuts alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from oakum_worker.parallel.blocks import Block, Span
from oakum_worker.parallel.tensor.grids import Axes, Grid, cut


@dataclass(frozen=True, slots=True)
class Split:
    """How one dimension of a tensor is cut along a grid's axes.

    The dimension consists of `fold` sections of equal length, such as the queries, keys and values of a fused
    projection, each section of `units`, such as heads, and each unit of equally many elements. A rank has its
    units of every section.
    """

    axes: Axes
    """Empty where every rank has the whole dimension."""
    units: int
    fold: int = 1

    def own_units(self, grid: Grid, rank: int) -> range:
        """The indices, within a section, of the units that a rank has; they are the same in each section."""
        lengths, place = grid.lengths, grid.coordinates(rank)
        return cut(self.units, [(lengths[axis], place[axis]) for axis in self.axes])

    def span(self, length: int, grid: Grid, rank: int) -> Span:
        """The indices of a dimension of this `length` that a rank has."""
        section = length // self.fold
        inner = section // self.units
        own = self.own_units(grid, rank)
        starts = [number * section for number in range(self.fold)]
        if len(own) == self.units:
            return (range(length),)
        return tuple(range(start + own.start * inner, start + own.stop * inner) for start in starts)


Splits = tuple[Split | None, ...]
"""One for each dimension; None where every rank has the whole dimension."""


def axes_of(splits: Splits) -> Axes:
    """All axes along which a tensor is cut, in order."""
    return tuple(axis for split in splits if split is not None for axis in split.axes)


@dataclass(frozen=True, slots=True)
class Placement:
    """Which elements of one parameter each rank of a grid has."""

    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    splits: Splits
    role: str
    """What the parameter is for the converter: "linear weight", "bias", "embedding", "replicated", ..."""

    @classmethod
    def replicated(cls, shape: tuple[int, ...]) -> Placement:
        """A parameter that every rank has in full."""
        return cls(shape, (None,) * len(shape), "replicated")

    @property
    def axes(self) -> Axes:
        """The axes along which the parameter is cut."""
        return axes_of(self.splits)

    def block(self, grid: Grid, rank: int) -> Block:
        """The elements of the parameter that `rank` has."""
        return Block(
            tuple(
                (range(length),) if split is None else split.span(length, grid, rank)
                for length, split in zip(self.shape, self.splits, strict=True)
            )
        )

    def folded(self, fold: int) -> Placement:
        """The same placement, except that the first dimension consists of `fold` sections, each of which is cut by
        its own elements. The first dimension has to be cut."""
        first, *others = self.splits
        assert first is not None
        units = self.shape[0] // fold
        return replace(self, splits=(replace(first, units=units, fold=fold), *others))
