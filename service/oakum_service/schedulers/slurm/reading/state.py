"""What Slurm says of nodes, jobs and reservations, in one form for all its versions.

Times are Unix seconds; None means unset, and `inf` stands for UNLIMITED. Node lists stay folded (`n[001-003]`), as
Slurm writes them. The same values are sent as JSON when a collector posts them.
"""

from __future__ import annotations

from typing import Protocol

import msgspec


class SlurmNode(msgspec.Struct, frozen=True, gc=False):
    """One node as Slurm shows it."""

    name: str
    address: str
    states: tuple[str, ...]
    """Base state first, then flags, upper case: `("IDLE", "PLANNED")`."""
    partitions: tuple[str, ...] = ()
    gres: str = ""
    """As configured: `gpu:h100:4(S:0-1)`."""
    features: tuple[str, ...] = ()
    """Active features."""
    reservation: str = ""
    gres_used: str = ""
    """What of `gres` jobs have: `gpu:h100:3(IDX:0-2)`."""
    gres_drained: str = ""
    """What of `gres` is drained."""
    cpus: int = 0
    """0 where the number is not told; so are the next ones."""
    used_cpus: int = 0
    memory_mb: int = 0
    """What jobs may have of it."""
    used_memory_mb: int = 0


class SlurmJob(msgspec.Struct, frozen=True, gc=False):
    """One job that is pending, running or completing, or that has ended in a telling way (`has_telling_end`).

    A task of an array becomes a job of its own when it starts.
    """

    id: int
    name: str
    user: str
    partition: str
    states: tuple[str, ...]
    """Base state first, then flags: `("CANCELLED", "COMPLETING")`."""
    qos: str = ""
    nodes: str = ""
    """Allocated nodes, folded."""
    planned_nodes: str = ""
    """Where a pending job is announced to start, folded; empty if Slurm has not planned it."""
    num_nodes: int = 0
    """Number of allocated nodes; of requested ones while the job is pending."""
    submitted_at: float | None = None
    start_at: float | None = None
    """When it started or, if pending, is announced to start."""
    end_at: float | None = None
    """When its time limit ends it."""
    preempted_at: float | None = None
    """When Slurm told it to make room for another job, or ended it for that at once."""
    reason: str = ""
    """Why it is pending: `Resources`, `Dependency`, ..."""
    array_job_id: int | None = None
    array_task_id: int | None = None
    gres_per_node: str = ""
    """What it asks for on each node: `gres/gpu:a100:1`; empty where it asks in another way."""


class SlurmReservation(msgspec.Struct, frozen=True, gc=False):
    """One advance reservation of nodes."""

    name: str
    nodes: str
    start_at: float
    end_at: float
    flags: tuple[str, ...] = ()
    """`MAINT`, `IGNORE_JOBS`, ..."""


class Unread(msgspec.Struct, frozen=True, gc=False):
    """One node, job or reservation that could not be understood. A node then counts as unavailable; of a job what
    could be read is used; a reservation's nodes count as unavailable."""

    kind: str
    """`node`, `job` or `reservation`."""
    name: str
    why: str
    """Where it was read, which of its fields could not be read, and what was expected."""
    nodes: str = ""
    """Folded list of the nodes that it concerns, where that could be read."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.why}"


class SlurmState(msgspec.Struct, frozen=True, gc=False):
    """Nodes, jobs and reservations at one moment."""

    taken_at: float
    version: str
    """Version of slurmctld: `22.05.8`."""
    nodes: tuple[SlurmNode, ...]
    jobs: tuple[SlurmJob, ...]
    reservations: tuple[SlurmReservation, ...] = ()
    unread: tuple[Unread, ...] = ()
    """What could not be understood."""
    failed: str = ""
    """Why a collector could not read Slurm after this, its last state; empty for a state that it has just read."""
    next_s: float | None = None
    """Seconds within which the collector means to post again; None: it has not said."""


class StateSource(Protocol):
    """Interface of what Slurm's state is read from. One thread calls it."""

    def read(self) -> SlurmState:
        """Read the present state. Raises `SchedulerError`, which says which command or call failed, and how."""

    def ping(self) -> None:
        """Ask whether slurmctld answers, which costs it next to nothing. Raises `SchedulerError` if it does not;
        does nothing where nobody can be asked."""

    def cycle_s(self) -> float | None:
        """Seconds of the main scheduler's last cycle (`sdiag`); None if it is unknown."""
