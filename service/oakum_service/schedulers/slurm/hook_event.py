"""What a hook of Slurm's told of one job, and who wants to hear it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable


class HookKind(StrEnum):
    """What happened to the job."""

    ALLOCATED = "allocated"
    ENDED = "ended"


@dataclass(frozen=True)
class HookEvent:
    """A job has its nodes, or has given them back: one event, however many hooks of the job tell of it."""

    kind: HookKind
    job: str
    nodes: str
    """Folded, as Slurm gives them: `n[001-003,007],gpu[1-2]`."""
    partition: str
    uid: int
    """Of the job's user."""
    start_at: float | None
    """When the job started, Unix seconds; None where Slurm did not say."""
    at: float
    """When the first hook of it ran, Unix seconds by the clock of the machine that ran it."""


@runtime_checkable
class HookListener(Protocol):
    """A scheduler that wants to be told."""

    def on_hook(self, event: HookEvent) -> None:
        """Called from any thread; must not block.

        Called again with a longer node list where no hook knows the whole one, and at a job's end when the last
        node's epilog has told: until then nodes are completing. An event may be older than the newest snapshot:
        compare `at` with when that was taken.
        """
