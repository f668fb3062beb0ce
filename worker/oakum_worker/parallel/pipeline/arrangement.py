"""How a pipeline trainer's work and state lie on the ranks of one generation.

Rank r works in replica r // D as worker r % D of its schedule, D being the schedule's number of workers. Ranks
beyond the last whole replica are spare: they hold nothing and compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oakum_worker.parallel.layout import Holdings, Part
from oakum_worker.parallel.pipeline.operations import Schedule


@dataclass(frozen=True)
class Seat:
    """What one rank does in a generation."""

    replica: int
    worker: int


@dataclass(frozen=True)
class Arrangement:
    """Which rank computes which layers."""

    world_size: int
    num_replicas: int
    schedule: Schedule
    """The one of each replica; for the message-driven engine it tells where the stages are."""
    cuts: tuple[range, ...]
    """The layers of each stage."""
    recompute: bool = False
    """Whether activations are computed again for the backward pass instead of kept."""
    message_driven: bool = False
    """Whether a worker takes what arrives first, instead of following the schedule."""
    in_flight: int | None = None
    """Micro-batches that are then on their way at once; None: as many as there are stages."""

    def seat(self, rank: int) -> Seat | None:
        """The rank's; None for a spare one."""
        replica, worker = divmod(rank, self.schedule.num_workers)
        return Seat(replica, worker) if replica < self.num_replicas else None

    def rank_of(self, replica: int, worker: int) -> int:
        """Who sits there."""
        return replica * self.schedule.num_workers + worker

    def ranks_of(self, replica: int) -> list[int]:
        """A replica's ranks, worker by worker."""
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
    """Which ranks hold which parts; `parts` tells the layers that use each of them."""
    layers = [arrangement.layers_of(rank) for rank in range(arrangement.world_size)]
    return Holdings(tuple(tuple(part for part, users in parts.items() if users & held) for held in layers))
