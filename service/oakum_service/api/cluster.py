"""/v1/cluster, /v1/nodes, /v1/holes, /v1/timeline: the cluster as Oakum sees it."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Admin, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.hold import hold_view
from oakum_service.api.idempotency import IdempotencyKey, answer_once
from oakum_service.api.intervals import intervals
from oakum_service.api.paging import Before, Place, older_than, page, place
from oakum_service.api.schemas.cluster import ClusterView, SilenceView
from oakum_service.api.schemas.foreground import ForegroundJobRequest, ForegroundJobView
from oakum_service.api.schemas.intervals import HoleList, IdleTimeView, Interval
from oakum_service.control.delays import quantile
from oakum_service.control.idle_time import idle_time
from oakum_service.control.limits import Kept, lost_share
from oakum_service.control.retention import HISTORY_S
from oakum_service.control.usage import usage_since
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import Harvest
from oakum_service.documents.silence import Silence
from oakum_service.errors import Conflict
from oakum_service.identity import audit
from oakum_service.orders import hold
from oakum_service.orders.live_settings import current
from oakum_service.schedulers.port import ForegroundTaker
from oakum_service.states import NodeState, TrainerState

router = APIRouter(prefix="/v1", tags=["cluster"])

_MOST_ENDED = 5000
"""Holes that have ended in one answer: each takes 30 microseconds."""

SinceS = Annotated[float, Query(gt=0, le=HISTORY_S, description="seconds back from now")]


@router.get("/holes")
def list_holes(
    context: InContext,
    _: Viewer,
    since_s: SinceS = 3600.0,
    limit: Annotated[
        int, Query(ge=1, le=20_000, description=f"most holes that have ended; {_MOST_ENDED} of more")
    ] = _MOST_ENDED,
    before: Before = None,
) -> HoleList:
    """List the holes of the last `since_s` seconds: all that last, and those that ended last; `before` gives those
    that ended earlier."""
    limit = min(limit, _MOST_ENDED)
    now = time.time()
    hole = NodeInterval.state == NodeState.HOLE
    with context.readers.begin() as session:
        went = None if before else _idle_time(session, now - since_s, now)
        lasting = [] if before else intervals(session, hole & NodeInterval.end_at.is_(None))
        earlier = hole & (NodeInterval.end_at >= now - since_s)
        if before:
            earlier &= older_than(NodeInterval.end_at, NodeInterval.id, place(before, int))
        ended, has_more = page(intervals(session, earlier, limit + 1), limit)
    last = ended[-1] if ended else None
    holes = [Interval(node=row.node, start_at=row.start_at, end_at=row.end_at) for row in (*lasting, *ended)]
    return HoleList(
        holes=sorted(holes, key=lambda each: each.start_at),
        next=str(Place(last.end_at, last.id)) if has_more and last is not None else None,
        idle_time=went,
    )


def _idle_time(session: Session, begin: float, now: float) -> IdleTimeView:
    return IdleTimeView(**idle_time(session, usage_since(session, begin, now), begin, now)._asdict())


@router.get("/cluster")
def show_cluster(context: InContext, _: Viewer) -> ClusterView:
    """Show the cluster at a glance; sums are over the last seven days."""
    now = time.time()
    begin = now - HISTORY_S
    with context.readers.begin() as session:
        states = dict(
            session.execute(
                select(NodeInterval.state, func.count())
                .where(NodeInterval.end_at.is_(None))
                .group_by(NodeInterval.state)
            ).all()
        )
        members = session.execute(select(Trainer.members).where(Trainer.state == TrainerState.RUNNING)).scalars()
        slots = dict(session.execute(select(Fragment.id, Fragment.num_slots).where(Fragment.is_live)).all())
        num_training = sum(slots.get(fragment, 1) for member in members for fragment in member)
        usage = usage_since(session, begin, now)
        went = idle_time(session, usage, begin, now)
        past_s = session.scalar(select(func.sum(Harvest.node_s))) or 0.0
        present = Fragment.ended_at.is_(None) & Fragment.training_at.is_not(None)
        present_s = (
            session.scalar(select(func.sum(Fragment.num_slots * (now - Fragment.training_at))).where(present))
            or 0.0
        )
        num_fragments = session.execute(
            select(func.count()).select_from(Fragment).where(Fragment.is_live)
        ).scalar_one()
        held = hold.held(session)
        delays, last_delay = context.delays.ordered(session, now)
        lost = lost_share(session, now)
        settings = current(session, context.settings)
    delay_p99 = Kept(quantile(delays, 0.99), settings.limit_delay_p99_s)
    return ClusterView(
        scheduler=context.scheduler.name,
        num_nodes=sum(states.values()),
        num_foreground=states.get(NodeState.FOREGROUND, 0),
        num_holes=states.get(NodeState.HOLE, 0),
        num_training=num_training,
        idle_node_s=usage.idle_node_s,
        used_node_s=min(usage.used_node_s, usage.idle_node_s),
        idle_time=IdleTimeView(**went._asdict()),
        harvested_node_s=past_s + max(0.0, present_s),
        foreground_jobs_started=len(delays),
        foreground_delay_p50_s=quantile(delays, 0.5),
        foreground_delay_p99_s=delay_p99.figure,
        foreground_delay_max_s=delays[-1] if delays else None,
        foreground_delay_last_s=last_delay,
        limit_delay_p99_s=delay_p99.limit,
        exceeds_delay_p99=delay_p99.is_exceeded,
        lost_share=lost,
        limit_lost_share=settings.limit_lost_share,
        exceeds_lost_share=Kept(lost, settings.limit_lost_share).is_exceeded,
        num_fragments=num_fragments,
        held=held is not None,
        hold=None if held is None else hold_view(held),
        fault=context.writability.fault,
        dry_run=context.settings.dry_run,
        snapshot_age_s=_age_s(context.snapshot_at(), now),
        silence=_silence_view(context.silence(), now),
    )


@router.post("/cluster/foreground-jobs", status_code=HTTPStatus.CREATED, response_model=ForegroundJobView)
def submit_foreground_job(
    request: ForegroundJobRequest, context: InContext, admin: Admin, key: IdempotencyKey = None
) -> JSONResponse:
    """Submit a foreground job to the embedded cluster, to watch it take its nodes."""
    cluster = context.scheduler
    if not isinstance(cluster, ForegroundTaker):
        raise Conflict(
            f"foreground jobs are handed in to {cluster.name} itself; this call is for the embedded one"
        )
    if request.nodes > cluster.num_nodes:
        raise Conflict(f"{request.nodes} nodes: the embedded cluster has {cluster.num_nodes}")

    def carry_out() -> ForegroundJobView:
        job = cluster.submit_foreground(request.nodes, request.run_s)
        audit.record(session, admin.actor, "foreground.submitted", job, **request.model_dump())
        return ForegroundJobView(job=job)

    asked = {"foreground_job": request.model_dump()}
    with context.sessions.begin() as session:
        return answer_once(session, admin, key, asked, HTTPStatus.CREATED, carry_out)


def _silence_view(silence: Silence | None, now: float) -> SilenceView | None:
    if silence is None:
        return None
    return SilenceView(since=silence.since, for_s=max(0.0, now - silence.since), tried=silence.tried)


def _age_s(taken_at: float | None, now: float) -> float | None:
    """Age in seconds of the scheduler state that was read at `taken_at`; None for none."""
    return None if taken_at is None else max(0.0, now - taken_at)
