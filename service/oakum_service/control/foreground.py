"""Records foreground jobs' starts, and how long our fragments kept each job waiting."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from oakum_service.control.ledger import charge
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import UNKNOWN_JOB
from oakum_service.documents.slots import node_of, nodes_of, slots_in
from oakum_service.instruments import FOREGROUND_DELAY_S
from oakum_service.schedulers.port import JobStart
from oakum_service.states import NodeState

_LONGEST_EXIT_S = 600.0
"""A signal more than this many seconds before a job's start was not for this job."""

_OTHER_CAUSES = ("cancelled", "time limit")
"""Of ends of fragments that were signalled for no job."""


def write_starts(session: Session, starts: Sequence[JobStart]) -> None:
    """Record those foreground jobs' starts that are not in the database yet, each with the seconds for which our
    fragments delayed it, and charge the delay to the fragments' users.

    A start may be seen after a later one: a job runs only when the last of its nodes' prologs has ended.
    """
    jobs = [start.job for start in starts]
    recorded = set(session.execute(select(ForegroundStart.job).where(ForegroundStart.job.in_(jobs))).scalars())
    for start in starts:
        if start.job not in recorded:
            recorded.add(start.job)
            signals = [] if start.delay_s == 0 else _signals(session, start)
            delay_s = start.delay_s
            if delay_s is None:
                delay_s = start.started_at - min((at for _, at in signals), default=start.started_at)
            after_commit(session, partial(FOREGROUND_DELAY_S.observe, delay_s))
            for user in (users := {user for user, _ in signals}):
                charge(session, user, start.started_at, foreground_delay_s=delay_s / len(users))
            session.add(
                ForegroundStart(
                    job=start.job, started_at=start.started_at, num_nodes=start.num_nodes, delay_s=delay_s
                )
            )


def _signals(session: Session, start: JobStart) -> list[tuple[str | None, float]]:
    """(user, time of the first signal, in Unix seconds) for each fragment on the job's nodes that had to leave for
    the job: neither another job nor another fragment has had a node in the meantime."""
    nodes = set(nodes_of(start.nodes))
    earliest = start.started_at - _LONGEST_EXIT_S
    columns = Fragment.node, Fragment.cause, Fragment.launched_at, Trainer.user_name, Report.body
    query = (
        select(*columns)
        .join(Report, Report.fragment_id == Fragment.id)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
    )
    live = session.execute(query.where(Fragment.ended_at.is_(None))).all()
    ended = session.execute(query.where(Fragment.ended_at >= earliest)).all()
    there = [row for row in (*live, *ended) if node_of(row.node) in nodes and row.launched_at < start.started_at]
    taken_at = _last_taken(session, start, {slot for row in there for slot in slots_in(row.node)})
    for row in there:
        for slot in slots_in(row.node):
            taken_at[slot] = max(row.launched_at, taken_at.get(slot, -math.inf))
    return [
        (row.user_name, at)
        for row in there
        if row.cause not in _OTHER_CAUSES
        and (at := row.body.signalled_at) is not None
        and earliest <= at <= start.started_at
        and all(at >= taken_at[slot] for slot in slots_in(row.node))
    ]


def _last_taken(session: Session, start: JobStart, slots: Collection[str]) -> dict[str, float]:
    """Slot -> when another foreground job was last seen to take it before this job started, in Unix seconds."""
    if not slots:
        return {}
    taken = session.execute(
        select(NodeInterval.node, func.max(NodeInterval.start_at))
        .where(
            NodeInterval.node.in_(slots),
            NodeInterval.state == NodeState.FOREGROUND,
            NodeInterval.job.not_in((start.job, UNKNOWN_JOB)),
            NodeInterval.start_at < start.started_at,
            or_(NodeInterval.end_at.is_(None), NodeInterval.end_at >= start.started_at - _LONGEST_EXIT_S),
        )
        .group_by(NodeInterval.node)
    )
    return dict(taken.all())
