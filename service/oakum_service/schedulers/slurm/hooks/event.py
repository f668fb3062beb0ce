"""What Slurm's hooks told of one job, and the interface of a scheduler that wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class HookKind(StrEnum):
    """What happened to a job: it got its nodes, or it gave them back."""

    ALLOCATED = "allocated"
    ENDED = "ended"


@dataclass(frozen=True)
class HookEvent:
    """A job got its nodes, or gave them back: one event, however many hooks of the job report it."""

    kind: HookKind
    job: str
    nodes: str
    """Folded node list as Slurm writes it: `n[001-003,007],gpu[1-2]`."""
    partition: str
    uid: int
    """User id of the job's user."""
    start_at: float | None
    """When the job started, Unix seconds; None if Slurm did not say."""
    at: float
    """When the first of the job's hooks ran, Unix seconds by the clock of the machine that ran it."""


@runtime_checkable
class HookListener(Protocol):
    """Interface of a scheduler that is told of hook events."""

    def on_hook(self, event: HookEvent) -> None:
        """Handle an event. Called from any thread; must not block.

        It is called again with a longer node list when no hook knew the whole list, and at a job's end once more
        after the last node's epilog, since nodes are completing until then. An event may be older than the newest
        snapshot: compare `at` with the time of the snapshot. One of minutes ago comes without nodes.
        """
