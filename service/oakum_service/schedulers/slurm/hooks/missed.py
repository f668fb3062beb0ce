"""Finds jobs of whose start or end no hook has told although hooks are installed: Slurm does not run them, as
after a change of slurm.conf without a restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from oakum_service.db.models.callers import ApiToken
from oakum_service.db.models.cluster import ForegroundStart, HookEventRecord, NodeInterval
from oakum_service.schedulers.port import HookKind
from oakum_service.schedulers.slurm.hooks.installation import RESTART, TOKEN_NAME
from oakum_service.states import NodeState

GRACE_S = 150.0
"""Time after which a job counts whose hook has not told: spools are sent every minute."""
IN_A_ROW = 3
"""Number of jobs in a row from which on it is told. One hook may have been killed, or have lost its spool."""
_LOOKED_AT = 20
_CLOCKS_S = 3600.0
_MOST_ENDS = 500


@dataclass(frozen=True)
class MissedJobs:
    """The newest jobs in a row, the newest first, whose hooks have not told."""

    started: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()

    @property
    def told(self) -> str:
        """A sentence on them, with what to do; empty for fewer than 3."""
        for what, jobs in (("start", self.started), ("end", self.ended)):
            if len(jobs) >= IN_A_ROW:
                named = ", ".join(map(str, jobs[:IN_A_ROW])) + (", ..." if jobs[IN_A_ROW:] else "")
                many = f"{len(jobs)}{' or more' if len(jobs) == _LOOKED_AT else ''}"
                told = f"no hook has told of the {what} of the last {many} jobs ({named})"
                return f"{told}, so Slurm does not run them: {RESTART}"
        return ""


def expected_since(session: Session) -> float | None:
    """Since when hooks should tell of jobs, in Unix seconds: since a token was made for them, or one has told;
    None if they are not installed."""
    token = select(func.min(ApiToken.created_at)).where(ApiToken.name == TOKEN_NAME, ApiToken.role == "hook")
    times = (session.scalar(token), session.scalar(select(func.min(HookEventRecord.received_at))))
    return min((at for at in times if at is not None), default=None)


def missed_jobs(session: Session, now: float) -> MissedJobs:
    """The newest foreground jobs in a row that the service has seen to start, or to end, and of which no hook has
    told since."""
    since = expected_since(session)
    if since is None:
        return MissedJobs()
    until = now - GRACE_S
    starts = (
        select(ForegroundStart.job)
        .where(ForegroundStart.started_at > since, ForegroundStart.started_at < until)
        .order_by(ForegroundStart.started_at.desc())
        .limit(_LOOKED_AT)
    )
    return MissedJobs(
        _unheard(session, HookKind.ALLOCATED, session.scalars(starts), since),
        _unheard(session, HookKind.ENDED, _ended(session, since, until), since),
    )


def _ended(session: Session, since: float, until: float) -> Iterable[str | None]:
    """The jobs that have ended, the newest first: those that gave a node back which others may have had at once. A
    node that becomes unavailable may still run its job."""
    after = aliased(NodeInterval)
    ended = (
        select(NodeInterval.job)
        .join(after, (after.node == NodeInterval.node) & (after.start_at == NodeInterval.end_at))
        .where(
            NodeInterval.state == NodeState.FOREGROUND, NodeInterval.end_at > since, NodeInterval.end_at < until
        )
        .where(after.state != NodeState.UNAVAILABLE)
        .order_by(NodeInterval.end_at.desc())
        .limit(_MOST_ENDS)
    )
    return session.scalars(ended)


def _unheard(session: Session, kind: HookKind, jobs: Iterable[str | None], since: float) -> tuple[int, ...]:
    """The first of these jobs, up to the first one of which a hook has told."""
    numbers = [int(job) for job in dict.fromkeys(jobs) if job is not None and job.isdecimal()][:_LOOKED_AT]
    heard = heard_of(session, numbers, since - _CLOCKS_S)
    unheard: list[int] = []
    for number in numbers:
        if kind in heard.get(number, {}):
            break
        unheard.append(number)
    return tuple(unheard)


def heard_of(session: Session, jobs: Sequence[int], since: float = 0.0) -> dict[int, dict[str, list[str]]]:
    """Job -> kind of event -> names of the hooks that have told of it, for those of `jobs` of which any has told
    since then."""
    columns = (HookEventRecord.job_id, HookEventRecord.kind, HookEventRecord.heard)
    rows = select(*columns).where(HookEventRecord.received_at >= since, HookEventRecord.job_id.in_(jobs))
    kinds_by_job: dict[int, dict[str, list[str]]] = {}
    for job, kind, heard in session.execute(rows):
        hooks = kinds_by_job.setdefault(job, {}).setdefault(kind, [])
        hooks += [hook for hook in sorted(heard) if hook not in hooks]
    return kinds_by_job
