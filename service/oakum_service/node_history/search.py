"""On which nodes something of a name ran in a window of time.

Rows are looked through, since no index finds a part of a name. How many is bounded: a week of 5,000 nodes has a
million.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Subquery, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.slots import slots_in
from oakum_service.node_history.bars import Window

MOST_SEARCHED = 30_000
"""Stretches, and as many fragments, that a search looks through of those that ended in the window, and as many of
those that ended after it: each takes 4 microseconds."""
_Time = InstrumentedAttribute[float] | InstrumentedAttribute[float | None]


class Found(NamedTuple):
    """The nodes of a search."""

    nodes: frozenset[str]
    is_complete: bool
    """Whether all was looked through that ran in the window; else what ended last in it was."""


def nodes_that_ran(session: Session, text: str, window: Window) -> Found:
    """The nodes on which, in the window, there was a fragment of a trainer with `text` in its name or its user's,
    or a foreground job with `text` in its id or name; capitals and small letters are the same."""
    nodes = _of_fragments(session, text, window) | _of_jobs(session, text, window)
    times = (NodeInterval.end_at, Fragment.ended_at)
    return Found(frozenset(nodes), not any(_are_too_many(session, ended, window) for ended in times))


def _of_fragments(session: Session, text: str, window: Window) -> set[str]:
    columns = (Fragment.node, Fragment.trainer_id)
    nodes: set[str] = set()
    for rows in _looked_through(Fragment.launched_at, Fragment.ended_at, window, *columns):
        # Each trainer once for each node: it may have been there a hundred times.
        once = (
            select(rows.c.node, rows.c.trainer_id).where(rows.c.launched_at <= window.to_at).distinct().subquery()
        )
        named = or_(_has(Trainer.name, text), _has(Trainer.user_name, text))
        joined = select(once.c.node).join(Trainer, Trainer.id == once.c.trainer_id)
        nodes |= {slot for node in session.scalars(joined.where(named)) for slot in slots_in(node)}
    return nodes


def _of_jobs(session: Session, text: str, window: Window) -> set[str]:
    columns = (NodeInterval.node, NodeInterval.job, NodeInterval.job_name)
    nodes: set[str] = set()
    for rows in _looked_through(NodeInterval.start_at, NodeInterval.end_at, window, *columns):
        named = or_(_has(rows.c.job, text), _has(rows.c.job_name, text))
        nodes |= set(session.scalars(select(rows.c.node).where(named, rows.c.start_at <= window.to_at)))
    return nodes


def _looked_through(
    begun: _Time, ended: _Time, window: Window, *columns: InstrumentedAttribute[Any]
) -> Iterator[Subquery]:
    """What lasts, the newest of what ended in the window, and the first of what ended after it. They are queries
    of their own, each of which reads an index from one end."""
    row = select(*columns, begun)
    within = ended >= window.from_at, ended <= window.to_at
    for query in (
        row.where(ended.is_(None)),
        row.where(*within).order_by(ended.desc()).limit(MOST_SEARCHED),
        row.where(ended > window.to_at).order_by(ended).limit(MOST_SEARCHED),
    ):
        yield query.subquery()


def _are_too_many(session: Session, ended: _Time, window: Window) -> bool:
    within = ended >= window.from_at, ended <= window.to_at
    return any(
        session.scalar(select(ended).where(*condition).offset(MOST_SEARCHED).limit(1)) is not None
        for condition in (within, (ended > window.to_at,))
    )


def _has(column: ColumnElement[Any] | InstrumentedAttribute[Any], text: str) -> ColumnElement[bool]:
    return column.icontains(text, autoescape=True)
