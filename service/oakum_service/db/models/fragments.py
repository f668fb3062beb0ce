"""Fragments, and what their agents report."""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import ColumnElement, ForeignKey, Index, String, func, select
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import Mapped, Session, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base, RowId
from oakum_service.documents.slots import JOINT, slots_in
from oakum_worker.protocol import FragmentReport


class Fragment(Base):
    """One scheduler job of a trainer on one node. Its id is the intent, committed before the job exists."""

    __tablename__ = "fragments"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    node: Mapped[str] = mapped_column(String(255))
    """Its node or slot, or several slots of a node: `documents.slots` has their names."""
    plan_id: Mapped[int | None] = mapped_column(RowId)
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
    """Why the fragment ended: preempted, released, cancelled, time limit, finished, failed, lost, never
    started, never reported."""
    crashes: Mapped[int] = mapped_column(default=0)
    """Number of the newest crash that the controller has processed."""
    warnings: Mapped[tuple[str, ...]] = mapped_column(default=())
    """Warnings of the newest report that the controller has processed."""

    __table_args__ = (
        Index("ix_fragments_trainer", "trainer_id", "ended_at"),
        # With all that pictures of many nodes show: a week may have a million fragments.
        Index("ix_fragments_ended", "ended_at", "training_at", "node"),
        Index("ix_fragments_node", "node", "ended_at"),
    )

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots; of a whole node, the node's."""
        return slots_in(self.node)

    @hybrid_property
    def num_slots(self) -> int:
        """How many slots it has, which its node-time counts; in a query, the expression for that."""
        return len(self.slots)

    @num_slots.inplace.expression
    @classmethod
    def _num_slots(cls) -> ColumnElement[int]:
        return 1 + func.length(cls.node) - func.length(func.replace(cls.node, JOINT, ""))

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
    body: Mapped[FragmentReport] = mapped_column(JsonOf(FragmentReport, cached=4096))
