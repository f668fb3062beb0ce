"""Trainers, their tags, and their generations."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import ColumnElement, ForeignKey, Index, String, Text, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import NONE_BY_DEFAULT, Base
from oakum_service.documents.crash import NewestCrash
from oakum_service.documents.durations import Measured
from oakum_service.documents.fragment_slots import FragmentSlots, Slots
from oakum_service.documents.pause import Pause
from oakum_service.documents.setback import Setback
from oakum_service.documents.time_account import TimeAccount
from oakum_service.states import LIVE_STATES
from oakum_worker.protocol import Pace, TrainingProgress
from oakum_worker.spec import TrainerSpec


class Trainer(Base):
    """One elastic training job: what was asked for and where it stands."""

    __tablename__ = "trainers"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(63), index=True)
    spec: Mapped[TrainerSpec] = mapped_column(JsonOf(TrainerSpec, cached=4096))
    state: Mapped[str] = mapped_column(String(16))
    message: Mapped[str] = mapped_column(Text, default="")
    """Why the trainer ended. Before that, its present problem, until training is past it or has its next
    checkpoint."""
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    pause: Mapped[Pause | None] = mapped_column(JsonOf(Pause, optional=True), **NONE_BY_DEFAULT)
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
        JsonOf(TrainingProgress, optional=True), **NONE_BY_DEFAULT
    )
    """Newest progress; None before the first one."""
    pace: Mapped[Pace | None] = mapped_column(JsonOf(Pace, optional=True), **NONE_BY_DEFAULT)
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
    account: Mapped[TimeAccount | None] = mapped_column(JsonOf(TimeAccount, optional=True), **NONE_BY_DEFAULT)
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
        JsonOf(NewestCrash, optional=True, sparse=True), **NONE_BY_DEFAULT
    )
    """The newest crash that ended an attempt; None before the first one."""
    fragment_slots: Mapped[FragmentSlots | None] = mapped_column(
        JsonOf(FragmentSlots, optional=True), **NONE_BY_DEFAULT
    )
    """What was decided before its fragments were launched, where the spec leaves their slots to the service:
    `control.fragment_slots`."""
    setback: Mapped[Setback | None] = mapped_column(JsonOf(Setback, optional=True), **NONE_BY_DEFAULT)
    """The newest launches, if they came to nothing: `control.setbacks`."""

    guard_waited_s: Mapped[float] = mapped_column(default=0.0)
    guard_served_s: Mapped[float] = mapped_column(default=0.0)
    """Seconds served. Together with `guard_waited_s`, the trainer's `oakum_solver.guard.Wait`."""
    waiting_since: Mapped[float | None]
    """When the trainer lost its last node or, before its first node, was submitted; null while it has nodes."""

    # Lists have the newest first, whatever they are narrowed to: each index gives its rows in that order.
    __table_args__ = (
        Index("ix_trainers_submitted", "submitted_at", "id"),
        Index("ix_trainers_state", "state", "submitted_at", "id"),
        Index("ix_trainers_user", "user_name", "submitted_at", "id"),
    )

    @property
    def reported_step(self) -> int:
        """Number of finished steps according to the newest progress; 0 before the first one."""
        return 0 if self.progress is None else self.progress.step

    @property
    def reported_rate(self) -> float | None:
        """Samples/s according to the newest progress; None if it has none."""
        return None if self.progress is None else self.progress.samples_per_s

    @property
    def slots_per_fragment(self) -> Slots:
        """How many slots of one node each of its fragments has, by its spec or as decided; one before that."""
        asked = self.spec.slots_per_fragment
        if asked != "auto":
            return asked
        return 1 if self.fragment_slots is None else self.fragment_slots.slots

    @property
    def slots_reason(self) -> str:
        """Why its fragments have so many; empty if its spec says that, or before it is decided."""
        decided = self.fragment_slots
        return "" if self.spec.slots_per_fragment != "auto" or decided is None else decided.reason

    @property
    def present_batch(self) -> int:
        """Samples per step at present."""
        return (self.progress and self.progress.global_batch) or self.spec.global_batch


def live_of(user: str) -> tuple[ColumnElement[bool], ...]:
    """Conditions of the user's live trainers, for a query that goes by the state: by the user it would go through
    all that have ended."""
    return Trainer.state.in_(LIVE_STATES), Trainer.user_name.concat("") == user


def trainers_of(session: Session, ids: Collection[str]) -> dict[str, Trainer]:
    """The trainers with these ids. To be used in place of a join with their fragments, each of whose rows would
    hold the trainer's JSON once more."""
    return {trainer.id: trainer for trainer in session.scalars(select(Trainer).where(Trainer.id.in_(ids)))}


class TrainerTag(Base):
    """One tag of one trainer, for those who look for the newest trainers with a tag. The spec has the tags, too:
    `orders.annotations` keeps both alike."""

    __tablename__ = "trainer_tags"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    tag: Mapped[str] = mapped_column(String(40), primary_key=True)
    submitted_at: Mapped[float]
    """The trainer's, so that the index gives its rows in the order of the list."""

    __table_args__ = (Index("ix_trainer_tags_newest", "tag", "submitted_at", "trainer_id"),)


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
