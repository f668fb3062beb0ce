"""What has kept a trainer's newest launches from beginning to train."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SetbackKind(StrEnum):
    """How a launch comes to nothing."""

    REFUSED = "refused"
    """The scheduler, or what submits to it, has refused the submission."""
    PENDING = "pending"
    """The scheduler has taken the submission and begun no job, for another reason than that nodes were busy."""
    UNREPORTED = "unreported"
    """The fragment ended before its agent reported for the first time."""


@dataclass(frozen=True)
class Setback:
    """Launches of a trainer that came to nothing, one after the other, and when the next is due. Times are Unix
    seconds."""

    kind: SetbackKind
    what: str
    """What the scheduler or the fragment's log says, in its own words."""
    since: float
    at: float
    """When the newest of these launches came to nothing."""
    times: int
    """Number of tries; launches that were under way when another came to nothing belong to the same one."""
    next_at: float
    """When the next launch is due, unless what it depends on changes before."""
    nodes: tuple[str, ...]
    """Where these launches were to run, the newest first; only the newest few."""
    basis: str
    """Identifies the state of what a launch depends on: the trainer's spec, the nodes, the partition."""
    own_jobs: int
    """Number of our jobs at the scheduler; when they have become fewer, a limit may allow another."""
