"""When the slots of a node were idle, by what its jobs had of it. Pure.

The accounting tells how many GPUs, cores and how much memory a job had, not which. So only the number of a node's
idle slots follows, and the slot k counts as idle while more than k are.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from oakum_service.schedulers.slurm.reading.gres import gpus
from oakum_service.schedulers.slurm.reading.state import SlurmNode
from oakum_service.schedulers.slurm.reading.tres import Tres
from oakum_service.schedulers.slurm.slots import SlotShare, share_of, slots_within


class Use(NamedTuple):
    """What a job had of one node, or that the node was down."""

    began: float
    """Unix seconds."""
    ended: float
    tres: Tres | None = None
    """What it had; None: all of the node."""


@dataclass(frozen=True)
class Capacity:
    """What a node has; by default it is given as a whole, as one slot."""

    slots: int = 1
    share: SlotShare | None = None
    """The part of cores and memory that falls to one slot; None: any job has all of the node."""
    cpus: int | None = None
    """None where it is not told; so is the next one."""
    memory_mb: int | None = None

    @classmethod
    def in_parts(cls, node: SlurmNode) -> Capacity:
        """The capacity of a node of which each GPU is a slot. Raises `FieldError` where they cannot be read."""
        num_gpus = sum(gpus("gres", node.gres).values())
        return cls(num_gpus, share_of(node, ""), node.cpus or None, node.memory_mb or None)

    def num_idle(self, num_whole: int, cpus: int, memory_mb: int, num_gpus: int) -> int:
        """Number of idle slots while `num_whole` jobs have all of the node and others together so many cores, MB
        and GPUs of it; 0 where that is more than it has."""
        if num_whole or self.share is None:
            return 0 if num_whole else self.slots
        cpus_left = None if self.cpus is None else self.cpus - cpus
        memory_left = None if self.memory_mb is None else self.memory_mb - memory_mb
        return int(max(0, min(self.slots - num_gpus, slots_within(self.share, cpus_left, memory_left))))


def idle_spans(
    capacity: Capacity, uses: Iterable[Use], since: float, until: float
) -> Iterator[tuple[int, float, float]]:
    """(slot, begin, end) of each time between `since` and `until` that one of the node's slots was idle."""
    changes = [(since, 0, Use(since, since, Tres()))]
    for use in uses:
        if use.ended > since and use.began < min(use.ended, until):
            changes += [(max(use.began, since), 1, use), (min(use.ended, until), -1, use)]
    changes.append((until, 1, Use(until, until)))
    changes.sort(key=lambda change: change[0])
    num_whole = cpus = memory_mb = num_gpus = 0
    began: list[float] = []
    """Of each idle slot, since when it is."""
    for now, of_now in itertools.groupby(changes, key=lambda change: change[0]):
        for _, sign, use in of_now:
            if use.tres is None or capacity.share is None:
                num_whole += sign
            else:
                cpus += sign * use.tres.cpus
                memory_mb += sign * use.tres.memory_mb
                num_gpus += sign * use.tres.gpus
        num_idle = capacity.num_idle(num_whole, cpus, memory_mb, num_gpus)
        while len(began) > num_idle:
            yield len(began) - 1, began.pop(), now
        began += [now] * (num_idle - len(began))


def spread(tres: Tres, capacities: Sequence[Capacity | None]) -> list[Tres]:
    """What a job had of each of its nodes, by what it had of all together: as evenly as goes, the first ones have
    one more, and none has more than there is. None stands for a node of which nothing is known."""
    cpus = _evenly(tres.cpus, [None if one is None else one.cpus for one in capacities])
    memory_mb = _evenly(tres.memory_mb, [None if one is None else one.memory_mb for one in capacities])
    num_gpus = _evenly(tres.gpus, [None if one is None or one.share is None else one.slots for one in capacities])
    return [Tres(*each) for each in zip(cpus, memory_mb, num_gpus, strict=True)]


def _evenly(total: int, most: Sequence[int | None]) -> list[int]:
    shares = [0] * len(most)
    limits = [total if limit is None else limit for limit in most]
    # What the smallest nodes cannot have, the larger ones have.
    for done, at in enumerate(sorted(range(len(most)), key=limits.__getitem__)):
        shares[at] = min(limits[at], -(-total // (len(most) - done)))
        total -= shares[at]
    return shares
