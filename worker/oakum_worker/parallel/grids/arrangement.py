"""How a tensor-parallel trainer's ranks are put into grids in one generation.

Rank r is rank r % P of grid r // P, where P is the number of ranks of a grid. Each grid is a replica: it holds the
whole model, and computes a share of each batch. Ranks beyond the last whole grid are spare.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_worker.parallel.tensor.grids import Grid


@dataclass(frozen=True)
class GridSeat:
    """A rank's replica, and its rank within the replica's grid."""

    replica: int
    position: int


@dataclass(frozen=True)
class GridArrangement:
    """How many grids a generation has, of which form, and which rank has which place in them."""

    world_size: int
    num_replicas: int
    grid: Grid
    """The grid of every replica."""
    micro_batch: int | None = None
    """Most samples that a grid computes at once; None: its replica's whole share."""

    def seat(self, rank: int) -> GridSeat | None:
        """The rank's seat; None for a spare rank."""
        replica, position = divmod(rank, self.grid.num_ranks)
        return GridSeat(replica, position) if replica < self.num_replicas else None

    def ranks_of(self, replica: int) -> list[int]:
        """A replica's ranks, in the order of the grid."""
        size = self.grid.num_ranks
        return list(range(replica * size, (replica + 1) * size))

    def holders_of(self, position: int) -> list[int]:
        """The ranks that have the place `position` in their grids. They hold the same blocks."""
        return [replica * self.grid.num_ranks + position for replica in range(self.num_replicas)]


def name_of(grid: Grid) -> str:
    """The grid's name, such as `3d-2`, by which parts of a state refer to it; `grid_named` is the inverse."""
    return f"{grid.kind}-{grid.side}"


def grid_named(name: str) -> Grid:
    """The grid with a name that `name_of` made. Raises `ValueError` for any other name."""
    kind, _, side = name.partition("-")
    if kind == "1d":
        return Grid("1d", int(side))
    if kind == "2d":
        return Grid("2d", int(side))
    if kind == "3d":
        return Grid("3d", int(side))
    if kind == "shards":
        return Grid("shards", int(side))
    raise ValueError(f"no grid is named {name!r}: expected a name such as 3d-2")
