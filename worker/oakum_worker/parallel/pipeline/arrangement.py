"""How a pipeline trainer's work and state are distributed over the ranks of one generation.

Rank r is worker r % D of replica r // D, where D is the number of workers of the schedule. Ranks beyond the last
whole replica are spare: they hold no layers and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oakum_worker.parallel.holdings import Holdings, Part
from oakum_worker.parallel.pipeline.operations import Schedule


@dataclass(frozen=True)
class Seat:
    """One rank's replica and its worker number within the replica."""

    replica: int
    worker: int


@dataclass(frozen=True)
class Arrangement:
    """Which rank computes which layers, in which replica, and by which schedule."""

    world_size: int
    num_replicas: int
    schedule: Schedule
    """The schedule of every replica; the message-driven engine takes only the places of the stages from it."""
    cuts: tuple[range, ...]
    """The layers of each stage."""
    recompute: bool = False
    """Whether activations are computed again for the backward pass instead of kept."""
    message_driven: bool = False
    """Whether workers process messages in the order of arrival instead of following the schedule."""
    in_flight: int | None = None
    """Most micro-batches in flight at once with `message_driven`; None: as many as there are stages."""

    def seat(self, rank: int) -> Seat | None:
        """The rank's seat; None for a spare rank."""
        replica, worker = divmod(rank, self.schedule.num_workers)
        return Seat(replica, worker) if replica < self.num_replicas else None

    def rank_of(self, replica: int, worker: int) -> int:
        """The rank that is worker `worker` of replica `replica`."""
        return replica * self.schedule.num_workers + worker

    def ranks_of(self, replica: int) -> list[int]:
        """A replica's ranks, in the order of workers."""
        return [self.rank_of(replica, worker) for worker in range(self.schedule.num_workers)]

    def layers_of(self, rank: int) -> set[int]:
        """The layers that a rank holds."""
        seat = self.seat(rank)
        stages = self.schedule.stages_of(seat.worker) if seat is not None else ()
        return {layer for _, stage in stages for layer in self.cuts[stage]}

    def holders_of(self, stage: int) -> list[int]:
        """The ranks that hold a stage, those of all replicas and pipes."""
        workers = self.schedule.holders_of(stage)
        return [self.rank_of(replica, worker) for replica in range(self.num_replicas) for worker in workers]


def holdings(arrangement: Arrangement, parts: Mapping[Part, frozenset[int]]) -> Holdings:
    """Which ranks hold which parts of the state; `parts`: part -> the layers that use it."""
    layers = [arrangement.layers_of(rank) for rank in range(arrangement.world_size)]
    return Holdings(tuple(tuple(part for part, users in parts.items() if users & held) for held in layers))
