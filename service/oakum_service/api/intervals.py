"""Queries of nodes' intervals, which several lists are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from oakum_service.db.models.cluster import AnnouncementsRecord, NodeInterval, SnapshotRecord
from oakum_service.documents.announcement import Announcements
from oakum_service.documents.node import RecordedNodes


def intervals(session: Session, condition: ColumnElement[bool], limit: int | None = None) -> Sequence[Any]:
    """The intervals that the condition holds for, those that ended last first."""
    columns = (
        NodeInterval.id,
        NodeInterval.node,
        NodeInterval.state,
        NodeInterval.job,
        NodeInterval.job_name,
        NodeInterval.start_at,
        NodeInterval.end_at,
    )
    query = select(*columns).where(condition).order_by(NodeInterval.end_at.desc(), NodeInterval.id.desc())
    return session.execute(query.limit(limit)).all()


def present_nodes(session: Session) -> RecordedNodes:
    """The nodes of the newest snapshot; none before the first."""
    newest = select(SnapshotRecord.body).order_by(SnapshotRecord.number.desc()).limit(1)
    return session.execute(newest).scalar_one_or_none() or RecordedNodes(())


def announcements(session: Session) -> Announcements:
    """What the scheduler expects to take nodes, as it was told last; nothing before the first snapshot."""
    record = session.get(AnnouncementsRecord, 1)
    return Announcements() if record is None else record.body
