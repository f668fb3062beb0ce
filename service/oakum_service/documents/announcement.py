"""What the scheduler expects to take nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

MOST_KEPT = 500
"""Announcements that are kept of one snapshot: Slurm plans some hundreds of pending jobs at a time."""


class AnnouncedKind(StrEnum):
    """What takes nodes."""

    JOB = "job"
    RESERVATION = "reservation"


@dataclass(frozen=True)
class Announcement:
    """A waiting foreground job, or a reservation, with the nodes that it is expected to take. A forecast."""

    kind: AnnouncedKind
    name: str
    """The job's id, or the reservation's name."""
    title: str
    """The job's name; of a reservation what it is for, `maintenance`; empty where that is not told."""
    nodes: str
    """Folded node list: `n[001-003,007]`."""
    start_at: float
    """Unix seconds; of a reservation that holds its nodes already, when it began."""
    end_at: float | None
    """When its time limit, or the reservation, ends; None: it is not known, or does not end."""


@dataclass(frozen=True)
class Announcements:
    """What the scheduler expects at one moment."""

    soonest: tuple[Announcement, ...] = ()
    """Those that begin first, in the order of their begin."""
    left_out: int = 0
    """How many more there are."""

    @classmethod
    def of(cls, found: Iterable[Announcement]) -> Announcements:
        """The soonest `MOST_KEPT` of what was found."""
        in_order = sorted(found, key=lambda each: (each.start_at, each.kind, each.name))
        return cls(tuple(in_order[:MOST_KEPT]), max(0, len(in_order) - MOST_KEPT))
