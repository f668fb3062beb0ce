"""What Slurm says of nodes, jobs and reservations, in one shape for every version of it.

Times are Unix seconds; what Slurm leaves open is None, what it calls UNLIMITED is `inf`. Node lists stay folded
(`n[001-003]`), as Slurm gives them. The same values travel as JSON when a collector pushes them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class SlurmNode(msgspec.Struct, frozen=True, gc=False):
    """One node."""

    name: str
    address: str
    states: tuple[str, ...]
    """Base state first, then flags, upper case: `("IDLE", "PLANNED")`."""
    partitions: tuple[str, ...] = ()
    gres: str = ""
    """As configured: `gpu:h100:4(S:0-1)`."""
    features: tuple[str, ...] = ()
    """Active ones."""
    reservation: str = ""


class SlurmJob(msgspec.Struct, frozen=True, gc=False):
    """One job that is pending, running or completing, or that Slurm has ended of its own accord (`was_taken`).

    A task of an array is a job of its own once it starts.
    """

    id: int
    name: str
    user: str
    partition: str
    states: tuple[str, ...]
    """Base state first, then flags: `("CANCELLED", "COMPLETING")`."""
    qos: str = ""
    nodes: str = ""
    """Allocated to it, folded."""
    planned_nodes: str = ""
    """Where a pending job is announced to start, folded; empty where Slurm has not planned it."""
    num_nodes: int = 0
    """Allocated, or asked for while it is pending."""
    submitted_at: float | None = None
    start_at: float | None = None
    """When it started or, pending, is announced to start."""
    end_at: float | None = None
    """When its time limit ends it."""
    preempted_at: float | None = None
    """When Slurm told it to go for another job's sake, or ended it at once."""
    reason: str = ""
    """Why it is pending: `Resources`, `Dependency`, ..."""
    array_job_id: int | None = None
    array_task_id: int | None = None


class SlurmReservation(msgspec.Struct, frozen=True, gc=False):
    """One advance reservation."""

    name: str
    nodes: str
    start_at: float
    end_at: float
    flags: tuple[str, ...] = ()
    """`MAINT`, `IGNORE_JOBS`, ..."""


class SlurmState(msgspec.Struct, frozen=True, gc=False):
    """All of it at one moment."""

    taken_at: float
    version: str
    """Of the controller: `22.05.8`."""
    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]
    reservations: tuple[SlurmReservation, ...] = ()


class StateSource(Protocol):
    """Where states come from. One thread asks; nothing is asked twice at once."""

    def read(self) -> SlurmState:
        """The state now. Raises `SchedulerError` saying which command or call failed, and how."""

    def cycle_s(self) -> float | None:
        """Seconds that the main scheduler's last cycle took (`sdiag`), or None where that cannot be told."""
