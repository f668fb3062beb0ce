"""Numbers the ranks of a grid, and says which of them communicate.

A 3-D grid (Bian et al., "Maximizing parallelism in distributed training for huge neural networks",
arXiv:2105.14450) is a cube of q^3 ranks with the axes i, j and l. A 2-D grid (SUMMA) has i and j alone, a 1-D grid
(Megatron) has j alone; the other axes then have the length 1, so one set of rules serves all three. A grid of
shards has i alone: ranks divide the samples, and each has a part of every matrix, of which the others' parts are
gathered for a product (ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277).

Activations have rows (samples) and columns (features), in one of two layouts:

    layout   rows: in blocks by, then sub-blocks by   columns: in blocks by
    A        i, j                                     l
    B        i, l                                     j

A linear layer turns A into B and B into A, in a 1-D grid as in a 3-D one. In a 2-D grid rows go by i and columns
by j everywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

Axis = Literal["i", "j", "l"]
Axes = tuple[Axis, ...]
"""Axes along which something is cut: first into blocks by the first axis, these into sub-blocks by the next."""
Kind = Literal["1d", "2d", "3d", "shards"]
LayoutName = Literal["A", "B"]
ALL_AXES: Axes = ("i", "j", "l")


@dataclass(frozen=True, slots=True)
class Grid:
    """The form of a grid: a set of ranks that hold one copy of a model together, numbered along the axes i, j
    and l."""

    kind: Kind
    side: int
    """Length q of each axis: the grid has q (1-D and shards), q^2 or q^3 ranks."""

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f"a grid's side is {self.side}: give 1 or more")

    @classmethod
    def named(cls, name: str) -> Grid:
        """The grid with this `name`. Raises `ValueError` where no grid is called so."""
        kind, _, side = name.partition("-")
        if kind not in get_args(Kind) or not side.isdecimal():
            raise ValueError(f"no grid is named {name!r}: expected a name such as 3d-2")
        return cls(kind, int(side))  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """The grid's name, such as `3d-2`, by which parts of a state refer to it."""
        return f"{self.kind}-{self.side}"

    @property
    def lengths(self) -> Mapping[Axis, int]:
        """Length of each axis; 1 where the grid does not have the axis."""
        axes = {"1d": ("j",), "2d": ("i", "j"), "3d": ALL_AXES, "shards": ("i",)}[self.kind]
        return {axis: self.side if axis in axes else 1 for axis in ALL_AXES}

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the grid."""
        return math.prod(self.lengths.values())

    def coordinates(self, rank: int) -> Mapping[Axis, int]:
        """The rank's index along each axis: rank = i + n_i (j + n_j l), with n the lengths of the axes. Raises
        `ValueError` for a rank that is not in the grid."""
        if not 0 <= rank < self.num_ranks:
            raise ValueError(f"rank {rank} is not in a {self.kind} grid of {self.num_ranks} ranks")
        lengths = self.lengths
        rest, i = divmod(rank, lengths["i"])
        place_l, j = divmod(rest, lengths["j"])
        return {"i": i, "j": j, "l": place_l}

    def rank_at(self, coordinates: Mapping[Axis, int]) -> int:
        """The rank with these indices along the axes; the inverse of `coordinates`."""
        lengths = self.lengths
        return coordinates["i"] + lengths["i"] * (coordinates["j"] + lengths["j"] * coordinates["l"])

    def group_of(self, rank: int, axes: Axes) -> list[int]:
        """The ranks that differ from `rank` in no other axis than `axes`, in the order of their blocks.

        In the words of the paper, `("j",)` is a rank's input group, `("i",)` its weight group and `("l",)` its
        output group, for a layer whose input is in layout A. For layout B, j and l change places.
        """
        own, lengths = self.coordinates(rank), self.lengths
        places = itertools.product(*(range(lengths[axis]) for axis in axes))
        return [self.rank_at({**own, **dict(zip(axes, place, strict=True))}) for place in places]

    def rows(self, layout: LayoutName) -> Axes:
        """The axes along which the rows (samples) of an activation in this layout are cut."""
        if self.kind == "2d":
            return ("i",)
        return ("i", "j") if layout == "A" else ("i", "l")

    def columns(self, layout: LayoutName) -> Axes:
        """The axes along which the columns (features) of an activation in this layout are cut."""
        return ("l",) if layout == "A" and self.kind != "2d" else ("j",)


ONE_RANK = Grid("1d", 1)


def cut(length: int, parts: list[tuple[int, int]]) -> range:
    """The indices that are left of `range(length)` after it was cut once for each (number of blocks, number of
    the own block). Blocks are equally long where the number of blocks divides the length; otherwise their
    lengths differ by at most one."""
    start, stop = 0, length
    for count, own in parts:
        span = stop - start
        start, stop = start + span * own // count, start + span * (own + 1) // count
    return range(start, stop)
