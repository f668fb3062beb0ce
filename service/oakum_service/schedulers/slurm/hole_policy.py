"""What a site's settings, and its partitions, let count as holes."""

from __future__ import annotations

from dataclasses import dataclass

from oakum_service.schedulers.slurm.reading.state import SlurmNode


@dataclass(frozen=True)
class Exclusive:
    """Partitions in which jobs do not share nodes as elsewhere."""

    whole: frozenset[str] = frozenset()
    """In which each job gets whole nodes."""
    one_user: frozenset[str] = frozenset()
    """In which a node has jobs of one user only (`ExclusiveUser`)."""


@dataclass(frozen=True)
class HolePolicy:
    """What decides which nodes may count as holes."""

    partition: str
    planned_are_holes: bool = True
    powered_down_are_holes: bool = False
    type_features: tuple[str, ...] = ()
    """Node features that define a node type."""
    asked_features: tuple[str, ...] = ()
    """Node features that specs may ask for."""
    reservations: tuple[str, ...] = ()
    """Reservations that specs may ask for."""
    parts_are_holes: bool = False
    """Whether nodes with GPUs are given in parts, a GPU each, rather than as a whole."""
    is_preempted: bool = True
    """Whether Slurm preempts our jobs."""
    exclusive: Exclusive = Exclusive()

    def shares(self, node: SlurmNode) -> bool:
        """Whether the node is given in parts: not where each job of ours, or each other one, gets all of it."""
        others = set(node.partitions) - {self.partition}
        whole = self.exclusive.whole
        only_whole = self.partition in whole or (others and others <= whole)
        return self.parts_are_holes and not only_whole

    def bars(self, node: SlurmNode) -> bool:
        """Whether a job of ours on the node would keep others from it for as long as it runs: where a node has
        jobs of one user only, Slurm preempts none of them for another user's."""
        return self.is_preempted and not self.exclusive.one_user.isdisjoint(node.partitions)
