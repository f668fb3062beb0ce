"""Where a generation's ranks are: replicas of the model, each a pipeline of workers, each of which is a grid.

Rank r has the place r % P in grid r // P, where P is the number of ranks of a grid, and grid g is worker g % D of
replica g // D, where D is the number of workers of the schedule. A plain pipeline has grids of one rank, and a
plain grid is a pipeline of one worker. Ranks beyond the last whole replica are spare: they hold nothing of the
model and compute nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from oakum_worker.parallel.pipeline.operations import Schedule
from oakum_worker.parallel.tensor.grids import ONE_RANK, Grid

ONE_WORKER = Schedule("none", 1, ((0,),), ((),))
"""The schedule of a replica of one worker that has no stages to follow in an order."""


@dataclass(frozen=True)
class Seat:
    """One rank's replica, its worker number within the replica's pipeline, and its place in the worker's grid."""

    replica: int
    worker: int
    position: int = 0


@dataclass(frozen=True)
class Arrangement:
    """Which rank computes which layers, on which grid, in which replica, and by which schedule."""

    world_size: int
    num_replicas: int
    schedule: Schedule = ONE_WORKER
    """The schedule of every replica; the message-driven engine takes only the places of the stages from it."""
    cuts: tuple[range, ...] = ()
    """The layers of each stage; empty where a worker computes the whole model without knowing its layers."""
    grid: Grid = ONE_RANK
    """The grid of every worker."""
    micro_batch: int | None = None
    """Most samples that a replica without stages computes at once; None: its whole share."""
    recompute: bool = False
    """Whether activations are computed again for the backward pass instead of kept."""
    message_driven: bool = False
    """Whether workers process messages in the order of arrival instead of following the schedule."""
    in_flight: int | None = None
    """Most micro-batches in flight at once with `message_driven`; None: as many as there are stages."""

    def seat(self, rank: int) -> Seat | None:
        """The rank's seat; None for a spare rank."""
        number, position = divmod(rank, self.grid.num_ranks)
        replica, worker = divmod(number, self.schedule.num_workers)
        return Seat(replica, worker, position) if replica < self.num_replicas else None

    def rank_of(self, replica: int, worker: int, position: int = 0) -> int:
        """The rank with this seat."""
        return (replica * self.schedule.num_workers + worker) * self.grid.num_ranks + position

    def ranks_of(self, replica: int) -> list[int]:
        """A replica's ranks, in the order of workers, and of each worker in the order of its grid."""
        return list(range(self.rank_of(replica, 0), self.rank_of(replica + 1, 0)))

    def grid_of(self, rank: int) -> list[int]:
        """The ranks of this rank's grid, in the grid's order."""
        first = rank - rank % self.grid.num_ranks
        return list(range(first, first + self.grid.num_ranks))

    def layers_of(self, rank: int) -> set[int]:
        """The layers that a rank holds, or of whose matrices it has blocks."""
        seat = self.seat(rank)
        stages = self.schedule.stages_of(seat.worker) if seat is not None else ()
        return {layer for _, stage in stages for layer in self.cuts[stage]}

    def holders_of(self, stage: int, position: int = 0) -> list[int]:
        """The ranks at a place of the grids that hold a stage, those of all replicas and pipes. They hold the same
        of it."""
        workers = self.schedule.holders_of(stage)
        return [
            self.rank_of(replica, worker, position) for replica in range(self.num_replicas) for worker in workers
        ]
