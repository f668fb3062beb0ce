"""The tables. Times are Unix seconds. JSON columns hold values of `documents` and of the worker's protocol.

Who writes what: the API writes trainers, change requests, reports, hook events and idempotency records; all else
is the controller's, and each of its transactions checks the lease. Reports alone are written without taking turns.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    String,
    Text,
    select,
)
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.documents.crash import NewestCrash
from oakum_service.documents.durations import Measured
from oakum_service.documents.grant import Grant
from oakum_service.documents.node import RecordedNodes
from oakum_service.documents.notice import Notice
from oakum_service.documents.pause import Pause
from oakum_service.documents.rate_window import RateWindow
from oakum_service.documents.time_account import TimeAccount
from oakum_worker.protocol import FragmentReport, Pace, TrainingProgress
from oakum_worker.spec import TrainerSpec

# SQLite counts ids up only in columns of type INTEGER.
_Id = BigInteger().with_variant(Integer(), "sqlite")
LARGEST_ID = 2**63 - 1
"""Largest id that a query may name: that of a signed 64-bit integer."""
_NONE_BY_DEFAULT: Any = {"nullable": False, "default": lambda: None}
"""For columns whose type keeps None as `{}`: no row holds NULL."""


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, tuple[str, ...]: JsonOf(tuple[str, ...])}  # noqa: RUF012


class Trainer(Base):
    """One elastic training job: what was asked for and where it stands."""

    __tablename__ = "trainers"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), index=True)
    spec: Mapped[TrainerSpec] = mapped_column(JsonOf(TrainerSpec, cached=True))
    state: Mapped[str] = mapped_column(String(16), index=True)
    message: Mapped[str] = mapped_column(Text, default="")
    """Why the trainer ended. Before that, its present problem, until training is past it or has its next
    checkpoint."""
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    pause: Mapped[Pause | None] = mapped_column(JsonOf(Pause, optional=True), **_NONE_BY_DEFAULT)
    """Its user's pause; None if there is none."""
    submitted_at: Mapped[float]
    user_name: Mapped[str | None] = mapped_column(String(63))
    """Name of the token that submitted the trainer; null in rows from before this was recorded."""
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]

    generation: Mapped[int] = mapped_column(default=0)
    members: Mapped[tuple[str, ...]] = mapped_column(default=())
    """Fragment ids of the newest generation's members, in order of rank."""
    saver: Mapped[str | None] = mapped_column("closer", String(36))
    """Fragment that writes a durable checkpoint before training pauses; null while there are members."""
    has_state: Mapped[bool] = mapped_column(default=False)
    """Whether a member of the newest generation had the trainer's state when it was published."""
    ended_through: Mapped[int] = mapped_column("over", default=0)
    """Every generation up to this one has ended: its group is unusable."""
    revision: Mapped[int] = mapped_column(default=0)
    """Number of the newest orders to the trainer's fragments; rises with every change of them."""
    published_at: Mapped[float] = mapped_column(default=0.0)

    progress: Mapped[TrainingProgress | None] = mapped_column(
        JsonOf(TrainingProgress, optional=True), **_NONE_BY_DEFAULT
    )
    """Newest progress; None before the first one."""
    pace: Mapped[Pace | None] = mapped_column(JsonOf(Pace, optional=True), **_NONE_BY_DEFAULT)
    """Newest pace that the trainer's rank 0 reported; None before the first one and without nodes."""
    steps_at_size: Mapped[dict[int, int]] = mapped_column(JsonOf(dict[int, int]), default=dict)
    """Number of nodes -> steps taken on so many nodes, repeated steps included."""
    past_node_s: Mapped[float] = mapped_column(default=0.0)
    """Node-seconds from the launch to the end of the fragments that have ended."""
    past_warm_up_node_s: Mapped[float] = mapped_column(default=0.0)
    """Part of these before each fragment's first generation."""
    nodes_lost: Mapped[int] = mapped_column(default=0)
    nodes_gained: Mapped[int] = mapped_column(default=0)
    rescales: Mapped[int] = mapped_column(default=0)
    stall_s: Mapped[float] = mapped_column(default=0.0)
    last_stall_s: Mapped[float | None]
    durations: Mapped[Measured] = mapped_column(JsonOf(Measured), default=dict)
    """Newest measured seconds of stalls by kind and of start-ups: `control.durations`."""
    account: Mapped[TimeAccount | None] = mapped_column(JsonOf(TimeAccount, optional=True), **_NONE_BY_DEFAULT)
    """How the trainer's time since its first start divides; None before that start."""
    checkpoint_step: Mapped[int | None]
    """Step of the newest durable checkpoint."""
    checkpoint_at: Mapped[float | None]
    """When the service first heard of that checkpoint; null if the service found it on the disk."""
    crashes: Mapped[int] = mapped_column(default=0)
    """Attempts at the present stretch of training that have ended in errors: `control.attempts`."""
    crashed_step: Mapped[int] = mapped_column(default=-1)
    """Most steps that had been finished when one of these attempts ended."""
    crash: Mapped[NewestCrash | None] = mapped_column(
        JsonOf(NewestCrash, optional=True, sparse=True), **_NONE_BY_DEFAULT
    )
    """The newest crash that ended an attempt; None before the first one."""

    guard_waited_s: Mapped[float] = mapped_column(default=0.0)
    guard_served_s: Mapped[float] = mapped_column(default=0.0)
    """Seconds served. Together with `guard_waited_s`, the trainer's `oakum_solver.guard.Wait`."""
    waiting_since: Mapped[float | None]
    """When the trainer lost its last node or, before its first node, was submitted; null while it has nodes."""

    __table_args__ = (Index("ix_trainers_submitted", "submitted_at", "id"),)

    @property
    def told_step(self) -> int:
        """Number of finished steps according to the newest progress; 0 before the first one."""
        return 0 if self.progress is None else self.progress.step

    @property
    def told_rate(self) -> float | None:
        """Samples/s according to the newest progress; None if it has none."""
        return None if self.progress is None else self.progress.samples_per_s

    @property
    def present_batch(self) -> int:
        """Samples per step at present."""
        return (self.progress and self.progress.global_batch) or self.spec.global_batch


class Fragment(Base):
    """One scheduler job of a trainer on one node. Its id is the intent, committed before the job exists."""

    __tablename__ = "fragments"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    node: Mapped[str] = mapped_column(String(255))
    plan_id: Mapped[int | None] = mapped_column(_Id)
    state: Mapped[str] = mapped_column(String(16), index=True)
    job_id: Mapped[str | None] = mapped_column(String(64))
    released: Mapped[bool] = mapped_column(default=False)
    """Whether the fragment is to leave at the next step boundary: the plan no longer grants its node, or its agent
    may not know that it was preempted."""
    preempted: Mapped[bool] = mapped_column(default=False)
    """Whether the scheduler says that it takes the node. A scheduler may take a node without saying so."""
    launched_at: Mapped[float]
    ready_at: Mapped[float | None]
    training_at: Mapped[float | None]
    """When the fragment first joined a generation."""
    ended_at: Mapped[float | None]
    cause: Mapped[str] = mapped_column(String(32), default="")
    """Why the fragment ended: preempted, released, finished, failed, lost, never started."""
    crashes: Mapped[int] = mapped_column(default=0)
    """Number of the newest crash that the controller has processed."""
    warnings: Mapped[tuple[str, ...]] = mapped_column(default=())
    """Warnings of the newest report that the controller has processed."""

    __table_args__ = (
        Index("ix_fragments_trainer", "trainer_id", "ended_at"),
        Index("ix_fragments_ended", "ended_at"),
    )

    @hybrid_property
    def is_live(self) -> bool:
        """Whether the fragment's job may exist; in a query, the condition for that."""
        return self.state != FragmentState.ENDED

    @is_live.inplace.expression
    @classmethod
    def _is_live(cls) -> ColumnElement[bool]:
        # Not `!=`, for which no index is used: a turn must not read all fragments that have ever run.
        return cls.state.in_((FragmentState.INTENDED, FragmentState.LIVE))


class FragmentState(StrEnum):
    """What the controller knows of a fragment's job."""

    INTENDED = "intended"
    """The job may or may not exist."""
    LIVE = "live"
    ENDED = "ended"


def live_fragments(session: Session) -> list[Fragment]:
    """The fragments of all trainers whose jobs may exist."""
    return list(session.execute(select(Fragment).where(Fragment.is_live)).scalars())


class Report(Base):
    """The newest report of each fragment's agent. Written by the API, read by the controller."""

    __tablename__ = "reports"

    fragment_id: Mapped[str] = mapped_column(ForeignKey("fragments.id"), primary_key=True)
    sequence: Mapped[int]
    received_at: Mapped[float]
    body: Mapped[FragmentReport] = mapped_column(JsonOf(FragmentReport))


class GenerationRecord(Base):
    """One generation of a trainer: its nodes, why it was made, and how it began."""

    __tablename__ = "generations"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    nodes: Mapped[tuple[str, ...]]
    cause: Mapped[str] = mapped_column(String(255))
    published_at: Mapped[float] = mapped_column(index=True)
    formed_at: Mapped[float | None]
    step: Mapped[int | None]
    stall_s: Mapped[float | None]
    """Seconds of stall that the change of members cost, without the first step."""
    source: Mapped[str | None] = mapped_column(String(16))


class SnapshotRecord(Base):
    """A numbered snapshot of the scheduler's state, taken when the state changed; old snapshots are pruned."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    taken_at: Mapped[float]
    body: Mapped[RecordedNodes] = mapped_column(JsonOf(RecordedNodes))


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

    __table_args__ = (
        Index("ix_node_intervals_end", "end_at"),
        Index("ix_node_intervals_state", "state", "end_at", "start_at"),
        Index("ix_node_intervals_node", "node", "end_at"),
    )


class ForegroundStart(Base):
    """How long a foreground job waited for our fragments to leave its nodes."""

    __tablename__ = "foreground_starts"

    job: Mapped[str] = mapped_column(String(64), primary_key=True)
    started_at: Mapped[float]
    num_nodes: Mapped[int]
    delay_s: Mapped[float]

    __table_args__ = (Index("ix_foreground_starts_delays", "started_at", "delay_s"),)


class Harvest(Base):
    """What fragments that ended on one day have trained; kept for ever."""

    __tablename__ = "harvests"

    day: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Days since 1970-01-01, UTC."""
    node_s: Mapped[float]
    """Node-seconds from each fragment's first generation to its end."""


class UsageHour(Base):
    """Sums of one hour that is over (`control.usage`); kept for ever."""

    __tablename__ = "usage_hours"

    hour: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Hours since 1970-01-01, UTC."""
    idle_node_s: Mapped[float]
    """Node-seconds in holes."""
    used_node_s: Mapped[float]
    """Node-seconds in which fragments trained."""


class LedgerRecord(Base):
    """What is charged to one user in one month (`control.ledger`); kept for ever."""

    __tablename__ = "ledger"

    month: Mapped[str] = mapped_column(String(7), primary_key=True)
    """Such as `2026-11`, by UTC."""
    user_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    """Empty for trainers without a user."""
    lent_node_s: Mapped[float]
    warm_up_node_s: Mapped[float]
    grow_node_s: Mapped[float]
    shrink_node_s: Mapped[float]
    loss_node_s: Mapped[float]
    repeated_node_s: Mapped[float]
    foreground_delay_s: Mapped[float]


class PlanRecord(Base):
    """A plan, which never changes once it is written."""

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
    allocations: Mapped[dict[str, Grant]] = mapped_column(JsonOf(dict[str, Grant]))
    """Trainer id -> what the plan gives it."""


class ProgressSample(Base):
    """One point of a trainer's charts: step, nodes, loss and rate at one time."""

    __tablename__ = "progress"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    at: Mapped[float]
    step: Mapped[int]
    nodes: Mapped[int]
    loss: Mapped[float | None]
    samples_per_s: Mapped[float | None]
    after_gap: Mapped[bool] = mapped_column(default=False)
    """Whether the service was not listening between the previous sample and this one."""

    __table_args__ = (Index("ix_progress_trainer", "trainer_id", "id"),)


class EvaluationRecord(Base):
    """What one evaluation of a trainer gave; one that is repeated after a loss replaces the first one."""

    __tablename__ = "evaluations"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Number of steps that were finished."""
    at: Mapped[float]
    """When the service heard of it."""
    metrics: Mapped[dict[str, float]] = mapped_column(JsonOf(dict[str, float]))


class MeasuredRate(Base):
    """How fast a trainer trains at one number of nodes, in undisturbed training."""

    __tablename__ = "measured_rates"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    nodes: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    """Total seconds over which the rate was measured."""
    samples: Mapped[float]
    """Samples trained in these seconds."""
    explored_s: Mapped[float]
    """Part of `seconds` in which the planner assumed a higher rate than the curve's, to have this size
    measured."""
    recent: Mapped[tuple[RateWindow, ...]] = mapped_column(JsonOf(tuple[RateWindow, ...]))
    """The newest measurement windows, newest last."""


class EventRecord(Base):
    """Something that happened, for people and for the SSE stream."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(255))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Facts of the event by name, which differ from kind to kind; passed on to people and not read here."""


class AuditRecord(Base):
    """One act of a user or an administrator. The database refuses changes of these rows."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(_Id, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    token: Mapped[str] = mapped_column(String(12))
    """Id of the token used; empty without one."""
    request: Mapped[str] = mapped_column(String(64))
    """Id of the HTTP request, as in its answer's header `X-Request-ID`."""
    address: Mapped[str] = mapped_column(String(63))
    action: Mapped[str] = mapped_column(String(32))
    """What was done, such as trainer.cancelled; `refused` where the role or the owner did not allow it."""
    subject: Mapped[str] = mapped_column(String(255))
    owner: Mapped[str | None] = mapped_column(String(63))
    """User whose trainer or token is concerned."""
    refused: Mapped[bool]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Facts of the act by name; passed on to people and not read here."""

    __table_args__ = (Index("ix_audit_actor", "actor", "id"), Index("ix_audit_subject", "subject", "id"))


class NoticeRecord(Base):
    """A notice about a trainer's event, to be sent to one recipient; with an empty `channel`, to all
    recipients."""

    __tablename__ = "notices"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    """Id derived from the trainer, the event and the recipient; receivers drop a repeated notice by its id."""
    event: Mapped[str] = mapped_column(String(16))
    trainer_id: Mapped[str] = mapped_column(String(36))
    channel: Mapped[str] = mapped_column(String(16), default="")
    """webhook or email."""
    target: Mapped[str] = mapped_column(Text, default="")
    document: Mapped[Notice] = mapped_column(JsonOf(Notice))
    """The notice's content."""
    created_at: Mapped[float]
    due_at: Mapped[float | None] = mapped_column(index=True)
    """When the next attempt to send is due; null once the notice was accepted or given up."""
    attempts: Mapped[int] = mapped_column(default=0)
    sent_at: Mapped[float | None]
    error: Mapped[str] = mapped_column(Text, default="")
    """Error of the last attempt; empty if the recipient accepted the notice."""

    __table_args__ = (Index("ix_notices_trainer", "trainer_id", "created_at"),)


class HookEventRecord(Base):
    """What Slurm's hooks have reported of one job's start, or of its end. Written by the API."""

    __tablename__ = "hook_events"

    cluster: Mapped[str] = mapped_column(String(63), primary_key=True)
    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    restart: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """How often the job had been requeued."""
    kind: Mapped[str] = mapped_column(String(16), primary_key=True)
    """allocated or ended."""
    first_at: Mapped[float]
    newest_at: Mapped[float]
    """When the last of the reporting hooks ran; `first_at`: when the first one ran."""
    received_at: Mapped[float] = mapped_column(index=True)
    """When the service received the newest of these reports."""
    start_at: Mapped[float | None]
    end_at: Mapped[float | None]
    uid: Mapped[int] = mapped_column(BigInteger)
    partition: Mapped[str] = mapped_column(String(255))
    nodes: Mapped[str] = mapped_column(Text)
    """The nodes as a folded list, each node once."""
    heard: Mapped[dict[str, str]] = mapped_column(JsonOf(dict[str, str]))
    """Hook -> folded list of the nodes on which it ran; an empty text for a hook on the head node."""
    count: Mapped[int]
    """Number of hook runs that reported, each counted once however often its report was sent."""


class Lease(Base):
    """The process that may write as the controller, and until when. The table has one row."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(primary_key=True)
    holder: Mapped[str] = mapped_column(String(255))
    token: Mapped[int]
    """Fencing token: rises with every change of holder."""
    expires_at: Mapped[float]
    snapshot_at: Mapped[float | None]
    """When the holder last read the scheduler's state; None if no holder has yet."""


class PostedState(Base):
    """The newest state of the cluster that a collector has posted to a process that is not the controller. One
    row, or none."""

    __tablename__ = "posted_states"

    id: Mapped[int] = mapped_column(primary_key=True)
    taken_at: Mapped[float]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """A `SlurmState` as JSON, compressed by zlib."""


class Installation(Base):
    """The installation of the service that the database belongs to. One row."""

    __tablename__ = "installation"

    id: Mapped[int] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(String(16))
    """Hash of the installation's secret, which lies in its data directory."""
    data_dir: Mapped[str] = mapped_column(Text)
    host: Mapped[str] = mapped_column(String(255))
    """Where the service was first started, with `data_dir`."""
    database: Mapped[str | None] = mapped_column(String(32))
    """A random text by which the processes that share the data directory know that they share the database."""


class Hold(Base):
    """An admin's order that no fragment may run. One row, or none."""

    __tablename__ = "holds"

    id: Mapped[int] = mapped_column(primary_key=True)
    reason: Mapped[str] = mapped_column(Text)
    by_name: Mapped[str] = mapped_column(String(63))
    since: Mapped[float]


class SettingRecord(Base):
    """A setting that an administrator has changed while the service runs."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(63), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
    """A JSON value."""
    by_name: Mapped[str] = mapped_column(String(63))
    at: Mapped[float]


class ApiToken(Base):
    """A bearer token, kept only as its hash."""

    __tablename__ = "tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    """The user who holds it."""
    role: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(String(63), default="")
    """What the token is for, in the user's words."""
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    """From when on it is refused; null: never."""
    used_at: Mapped[float | None]
    """Its last use, to about five minutes; null before the first one."""


class QuotaRecord(Base):
    """One user's quota, where an administrator has set one. Null: what the settings say."""

    __tablename__ = "quotas"

    user_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    trainers: Mapped[int | None]
    """Most live trainers."""
    nodes: Mapped[int | None]
    """Most nodes of all the user's trainers together."""
    node_hours: Mapped[float | None]
    """Most node-hours in a calendar week."""
    storage_gib: Mapped[float | None]
    """Most GiB of checkpoints."""
    weight: Mapped[float | None]
    """Largest weight of a trainer."""
    by_name: Mapped[str] = mapped_column(String(63))
    """Who set it, and `since` when."""
    since: Mapped[float]


class IdempotencyRecord(Base):
    """The answer to a write that carried an Idempotency-Key."""

    __tablename__ = "idempotency"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    principal: Mapped[str] = mapped_column(String(64), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    """The answer's JSON, sent again as it is."""
    at: Mapped[float]
