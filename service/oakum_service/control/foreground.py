"""Foreground jobs that have started, and how long our fragments kept them waiting."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from oakum_service.db.models import ForegroundStart, Fragment, Report
from oakum_service.schedulers.port import JobStart

_LONGEST_EXIT_S = 600.0
"""A fragment that was signalled longer before a job's start did not keep that job waiting."""


def write_starts(session: Session, starts: Sequence[JobStart]) -> None:
    """Write down those that are new, of starts the newest of which may have been seen before."""
    newest = session.execute(select(func.max(ForegroundStart.started_at))).scalar_one_or_none() or 0.0
    for start in starts:
        # Several jobs may start in one moment, and not all of them be seen at once.
        if start.started_at >= newest and session.get(ForegroundStart, start.job) is None:
            delay_s = start.delay_s if start.delay_s is not None else _delay_s(session, start)
            session.add(
                ForegroundStart(
                    job=start.job, started_at=start.started_at, num_nodes=start.num_nodes, delay_s=delay_s
                )
            )


def _delay_s(session: Session, start: JobStart) -> float:
    """From the first signal to a fragment on the job's nodes to its start; 0 where none had to leave."""
    nodes = set(start.nodes)
    earliest = start.started_at - _LONGEST_EXIT_S
    rows = session.execute(
        select(Fragment.node, Report.body)
        .join(Report, Report.fragment_id == Fragment.id)
        .where(or_(Fragment.ended_at.is_(None), Fragment.ended_at >= earliest))
    )
    signalled = [
        at
        for node, body in rows
        if node in nodes and (at := body.get("signalled_at")) is not None and earliest <= at <= start.started_at
    ]
    return start.started_at - min(signalled) if signalled else 0.0
