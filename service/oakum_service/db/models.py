"""The tables. Times are Unix seconds; JSON columns hold documents of the API or of the worker's protocol.

Who writes what: the API writes trainers, change requests, reports, hook events and idempotency records; all else
is the controller's, and each of its transactions checks the lease. Reports alone are written without taking turns.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite counts ids up only in columns of type INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")
LARGEST_ID = 2**63 - 1
"""A larger one cannot even be asked for."""


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, list[str]: JSON, list[list[float]]: JSON}  # noqa: RUF012


class Trainer(Base):
    """One elastic training job: what was asked for and where it stands."""

    __tablename__ = "trainers"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), index=True)
    spec: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text, default="")
    """Why it ended; before that what is wrong with it, until its next durable checkpoint."""
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    submitted_at: Mapped[float]
    user_name: Mapped[str | None] = mapped_column(String(63))
    """Name of the token that submitted it; null where that was not written down yet."""
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]

    generation: Mapped[int] = mapped_column(default=0)
    members: Mapped[list[str]] = mapped_column(default=list)
    """Fragment ids of the newest generation, rank 0's first."""
    closer: Mapped[str | None] = mapped_column(String(36))
    over: Mapped[int] = mapped_column(default=0)
    revision: Mapped[int] = mapped_column(default=0)
    """Rises with every change of what its fragments have to obey."""
    published_at: Mapped[float] = mapped_column(default=0.0)

    progress: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Newest `protocol.Progress`."""
    steps_at_size: Mapped[dict[str, Any]] = mapped_column(default=dict)
    nodes_lost: Mapped[int] = mapped_column(default=0)
    nodes_gained: Mapped[int] = mapped_column(default=0)
    rescales: Mapped[int] = mapped_column(default=0)
    stall_s: Mapped[float] = mapped_column(default=0.0)
    last_stall_s: Mapped[float | None]
    durations: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Newest measured seconds of stalls by kind and of start-ups: `control.durations`."""
    account: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Where its time went since its first start: `control.accounts`; empty before."""
    checkpoint_step: Mapped[int | None]
    """Of the newest durable checkpoint."""
    checkpoint_at: Mapped[float | None]
    """When that was first heard of; null where it was found on the disk."""
    crashes: Mapped[int] = mapped_column(default=0)
    """Fragments lost to errors since the last finished step."""
    crashed_step: Mapped[int] = mapped_column(default=-1)

    guard_waited_s: Mapped[float] = mapped_column(default=0.0)
    guard_served_s: Mapped[float] = mapped_column(default=0.0)
    """With `guard_waited_s`, its `oakum_solver.guard.Wait`."""
    waiting_since: Mapped[float | None]
    """When it lost its last node or, before its first, was submitted; null while it has some."""


class Fragment(Base):
    """One scheduler job of a trainer on one node. Its id is the intent, committed before the job exists."""

    __tablename__ = "fragments"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), index=True)
    node: Mapped[str] = mapped_column(String(255))
    plan_id: Mapped[int | None] = mapped_column(_Id)
    state: Mapped[str] = mapped_column(String(16), index=True)
    job_id: Mapped[str | None] = mapped_column(String(64))
    released: Mapped[bool] = mapped_column(default=False)
    """To leave at the next step boundary: it is no longer granted, or may not have heard that it was preempted."""
    preempted: Mapped[bool] = mapped_column(default=False)
    """The scheduler says so; it may say nothing where it wants a node back."""
    launched_at: Mapped[float]
    ready_at: Mapped[float | None]
    training_at: Mapped[float | None]
    """When it first joined a generation."""
    ended_at: Mapped[float | None]
    cause: Mapped[str] = mapped_column(String(32), default="")
    """Why it ended: preempted, released, finished, failed, lost, never started."""
    warnings: Mapped[list[str]] = mapped_column(default=list)
    """Those of its newest report that have been taken in."""


class FragmentState(StrEnum):
    """What the controller knows of a fragment's job."""

    INTENDED = "intended"
    """The job may or may not exist."""
    LIVE = "live"
    ENDED = "ended"


class Report(Base):
    """The newest report of each fragment's agent. Written by the API, read by the controller."""

    __tablename__ = "reports"

    fragment_id: Mapped[str] = mapped_column(ForeignKey("fragments.id"), primary_key=True)
    sequence: Mapped[int]
    received_at: Mapped[float]
    body: Mapped[dict[str, Any]]


class GenerationRecord(Base):
    """History of memberships."""

    __tablename__ = "generations"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    nodes: Mapped[list[str]]
    cause: Mapped[str] = mapped_column(String(255))
    published_at: Mapped[float]
    formed_at: Mapped[float | None]
    step: Mapped[int | None]
    stall_s: Mapped[float | None]
    """Seconds that it cost, its first step left out."""
    source: Mapped[str | None] = mapped_column(String(16))


class SnapshotRecord(Base):
    """The scheduler's state at the last change of it, by number; older ones are pruned."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    taken_at: Mapped[float]
    body: Mapped[dict[str, Any]]


class NodeInterval(Base):
    """One stretch of one node in one state; a hole is such a stretch."""

    __tablename__ = "node_intervals"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    node: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(16))
    job: Mapped[str | None] = mapped_column(String(64))
    job_name: Mapped[str] = mapped_column(String(255), default="")
    start_at: Mapped[float]
    end_at: Mapped[float | None]

    __table_args__ = (Index("ix_node_intervals_end", "end_at"), Index("ix_node_intervals_node", "node", "end_at"))


class ForegroundStart(Base):
    """How long a foreground job waited for our fragments to leave its nodes."""

    __tablename__ = "foreground_starts"

    job: Mapped[str] = mapped_column(String(64), primary_key=True)
    started_at: Mapped[float]
    num_nodes: Mapped[int]
    delay_s: Mapped[float]


class PlanRecord(Base):
    """An immutable decision."""

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    parent_id: Mapped[int | None] = mapped_column(_Id)
    snapshot: Mapped[int] = mapped_column(_Id)
    made_at: Mapped[float]
    objective: Mapped[str] = mapped_column(Text)
    look_ahead_s: Mapped[float]
    value: Mapped[float]
    bound: Mapped[float]
    solver: Mapped[str] = mapped_column(String(16))
    solve_s: Mapped[float]
    optimal: Mapped[bool]
    allocations: Mapped[dict[str, Any]]
    """Trainer id -> {nodes, why, reason}."""


class ProgressSample(Base):
    """One point of a trainer's curves over time."""

    __tablename__ = "progress"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    at: Mapped[float]
    step: Mapped[int]
    nodes: Mapped[int]
    loss: Mapped[float | None]
    samples_per_s: Mapped[float | None]

    __table_args__ = (Index("ix_progress_trainer", "trainer_id", "id"),)


class MeasuredRate(Base):
    """How fast a trainer trains at one number of nodes, in undisturbed training."""

    __tablename__ = "measured_rates"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    nodes: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    """Over which it was measured, in all."""
    samples: Mapped[float]
    """Trained in these."""
    explored_s: Mapped[float]
    """Of the seconds, those in which the planner hoped for more than the curve says, to have the size measured."""
    recent: Mapped[list[list[float]]]
    """The newest windows, the newest last: [seconds, samples/s]."""


class EventRecord(Base):
    """Something that happened, for people and for the SSE stream."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(255))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


class HookEventRecord(Base):
    """All that Slurm's hooks have told of one job's start, or of its end. Written by the API."""

    __tablename__ = "hook_events"

    cluster: Mapped[str] = mapped_column(String(63), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    restart: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """How often the job had been requeued."""
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """allocated or ended."""
    first_at: Mapped[float]
    newest_at: Mapped[float]
    """With `first_at`, when the hooks ran that told of it."""
    received_at: Mapped[float] = mapped_column(index=True)
    """When the newest of them was heard here."""
    start_at: Mapped[float | None]
    end_at: Mapped[float | None]
    uid: Mapped[int] = mapped_column(BigInteger)
    partition: Mapped[str] = mapped_column(String(255))
    nodes: Mapped[str] = mapped_column(Text)
    """Folded, each once."""
    heard: Mapped[dict[str, Any]]
    """Hook -> the nodes, folded, on which it has told; of a hook on the head node, an empty text."""
    count: Mapped[int]
    """Hooks that have told, each once however often it was sent."""


class Lease(Base):
    """Who may write as the controller. One row."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    token: Mapped[int]
    """Fencing token: rises with every change of holder."""
    expires_at: Mapped[float]


class Hold(Base):
    """An admin's word that nothing is to run. One row, or none."""

    __tablename__ = "holds"

    id: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    by_name: Mapped[str] = mapped_column(String(63))
    since: Mapped[float]


class ApiToken(Base):
    """A bearer token, kept only as its hash."""

    __tablename__ = "tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[float]


class IdempotencyRecord(Base):
    """The answer to a write that carried an Idempotency-Key."""

    __tablename__ = "idempotency"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    principal: Mapped[str] = mapped_column(String(64), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    at: Mapped[float]
