"""Records foreground jobs' starts, and how long our fragments kept each job waiting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control.ledger import charge
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.cluster import ForegroundStart
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.slots import node_of, nodes_of
from oakum_service.instruments import FOREGROUND_DELAY_S
from oakum_service.schedulers.port import JobStart

_LONGEST_EXIT_S = 600.0
"""A signal more than this many seconds before a job's start was not for this job."""


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
    the job."""
    nodes = set(nodes_of(start.nodes))
    earliest = start.started_at - _LONGEST_EXIT_S
    query = (
        select(Fragment.node, Trainer.user_name, Report.body)
        .join(Report, Report.fragment_id == Fragment.id)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
    )
    live = session.execute(query.where(Fragment.ended_at.is_(None))).all()
    rows = [*live, *session.execute(query.where(Fragment.ended_at >= earliest))]
    return [
        (user, at)
        for node, user, body in rows
        if node_of(node) in nodes and (at := body.signalled_at) is not None and earliest <= at <= start.started_at
    ]
