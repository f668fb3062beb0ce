"""What the scheduler and its hooks tell of nodes and foreground jobs."""

from __future__ import annotations

from sqlalchemy import BigInteger, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base, RowId
from oakum_service.documents.announcement import Announcements
from oakum_service.documents.node import LONGEST_JOB_NAME, RecordedNodes


class SnapshotRecord(Base):
    """A numbered snapshot of the scheduler's state, taken when the state changed; old snapshots are pruned."""

    __tablename__ = "snapshots"

    number: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    taken_at: Mapped[float]
    body: Mapped[RecordedNodes] = mapped_column(JsonOf(RecordedNodes))


class AnnouncementsRecord(Base):
    """What the scheduler expects to take nodes, as it was told last. One row, or none."""

    __tablename__ = "announcements"

    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[Announcements] = mapped_column(JsonOf(Announcements, cached=2))


class NodeInterval(Base):
    """One stretch of one node in one state; a hole is such a stretch."""

    __tablename__ = "node_intervals"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    node: Mapped[str] = mapped_column(String(255))
    state: Mapped[str] = mapped_column(String(16))
    job: Mapped[str | None] = mapped_column(String(64))
    job_name: Mapped[str] = mapped_column(String(LONGEST_JOB_NAME), default="")
    start_at: Mapped[float]
    end_at: Mapped[float | None]

    __table_args__ = (
        Index("ix_node_intervals_end", "end_at"),
        # With all that pictures of many nodes show: a week may have a million stretches.
        Index("ix_node_intervals_state", "state", "end_at", "start_at", "node"),
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


class NodeSetback(Base):
    """A node on which fragments ended before they reported, or could not load what others had loaded, until one
    there is ready or the node comes back from an administrator."""

    __tablename__ = "node_setbacks"

    node: Mapped[str] = mapped_column(String(255), primary_key=True)
    at: Mapped[float]
    """When the newest of them ended."""
    times: Mapped[int]
    until_at: Mapped[float]
    """Until when nothing new is launched there."""
    what: Mapped[str] = mapped_column(Text)
    """The last words of the newest."""
    trainer_id: Mapped[str] = mapped_column(String(36))
    """Trainer of the newest."""
    is_own: Mapped[bool]
    """Whether the words are of the trainer's own code or of what was started for it, not of the node."""

    @property
    def public_text(self) -> str:
        """The last words as everybody may read them: a trainer's errors are its user's."""
        return "an error of the trainer's own code" if self.is_own else self.what


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


class PostedState(Base):
    """The newest state of the cluster that a collector has posted to a process that is not the controller. One
    row, or none."""

    __tablename__ = "posted_states"

    id: Mapped[int] = mapped_column(primary_key=True)
    taken_at: Mapped[float]
    body: Mapped[bytes] = mapped_column(LargeBinary)
    """A `SlurmState` as JSON, compressed by zlib."""
