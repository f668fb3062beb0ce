"""How a generation's ranks are put into grids, and these into the stages of pipelines.

Rank r has the place r % P in grid r // P, where P is the number of ranks of a grid. The pipeline's arrangement
says for each grid which layers it computes. Ranks beyond the last grid, and grids beyond the last replica, are
spare.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.tensor.grids import Grid


@dataclass(frozen=True)
class StackedSeat:
    """A rank's replica, its worker number within the replica's pipeline, and its place in the worker's grid."""

    replica: int
    worker: int
    position: int


@dataclass(frozen=True)
class StackedArrangement:
    """The grids of a generation, and the arrangement of a pipeline whose ranks are the grids."""

    world_size: int
    grid: Grid
    """The grid of every worker."""
    stages: Arrangement
    """Made for `world_size // grid.num_ranks` ranks, each of which is a grid."""

    @property
    def num_replicas(self) -> int:
        """Number of replicas of the whole model."""
        return self.stages.num_replicas

    @property
    def schedule(self) -> Schedule:
        """The schedule of every replica."""
        return self.stages.schedule

    def seat(self, rank: int) -> StackedSeat | None:
        """The rank's seat; None for a spare rank."""
        number, position = divmod(rank, self.grid.num_ranks)
        seat = self.stages.seat(number)
        return None if seat is None else StackedSeat(seat.replica, seat.worker, position)

    def layers_of(self, rank: int) -> set[int]:
        """The layers of whose matrices the rank has blocks."""
        return self.stages.layers_of(rank // self.grid.num_ranks)

    def grid_of(self, rank: int) -> list[int]:
        """The ranks of this rank's grid, in the grid's order."""
        size = self.grid.num_ranks
        first = rank // size * size
        return list(range(first, first + size))

    def beside(self, position: int) -> list[int]:
        """The rank at `position` of each stage's grid, in the order of the grids."""
        return [grid * self.grid.num_ranks + position for grid in range(self.stages.world_size)]
