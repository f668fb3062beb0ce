"""/v1/cluster, /v1/nodes, /v1/holes, /v1/timeline: the cluster as Oakum sees it."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from sqlalchemy import ColumnElement, case, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.api.auth import Admin, Viewer
from oakum_service.api.context import InContext
from oakum_service.api.idempotency import IdempotencyKey, answer_once
from oakum_service.api.schemas import (
    ClusterView,
    ForegroundInterval,
    ForegroundJobRequest,
    ForegroundJobView,
    FragmentInterval,
    HoleList,
    Interval,
    NodeList,
    NodeView,
    Timeline,
)
from oakum_service.control import hold
from oakum_service.control.retention import HISTORY_S
from oakum_service.db.models import (
    ForegroundStart,
    Fragment,
    FragmentState,
    NodeInterval,
    Report,
    SnapshotRecord,
    Trainer,
)
from oakum_service.errors import Conflict
from oakum_service.schedulers.local import LocalCluster
from oakum_service.schedulers.port import Scheduler
from oakum_service.states import NodeState

router = APIRouter(prefix="/v1", tags=["cluster"])

Window = Annotated[float, Query(gt=0, le=HISTORY_S, description="seconds back from now")]


@router.get("/nodes")
def list_nodes(context: InContext, _: Viewer) -> NodeList:
    """Every node, what it is doing and who trains on it."""
    with context.readers.begin() as session:
        newest = session.execute(
            select(SnapshotRecord).order_by(SnapshotRecord.number.desc()).limit(1)
        ).scalar_one_or_none()
        if newest is None:
            return NodeList(snapshot=0, taken_at=0.0, nodes=[])
        since = dict(
            session.execute(
                select(NodeInterval.node, NodeInterval.start_at).where(NodeInterval.end_at.is_(None))
            ).all()
        )
        rows = session.execute(
            select(Fragment, Trainer.name, Report)
            .join(Trainer, Trainer.id == Fragment.trainer_id)
            .outerjoin(Report, Report.fragment_id == Fragment.id)
            .where(Fragment.state != FragmentState.ENDED)
        )
        ours = {fragment.node: (name, _phase(fragment, report)) for fragment, name, report in rows}
    nodes = [
        NodeView(
            name=node["name"],
            state=NodeState(node["state"]),
            since=since.get(node["name"], newest.taken_at),
            foreground_job=node["job"],
            trainer=ours.get(node["name"], (None, None))[0],
            fragment_phase=ours.get(node["name"], (None, None))[1],
            hole_ends_at=node["announced_at"],
        )
        for node in newest.body["nodes"]
    ]
    return NodeList(snapshot=newest.number, taken_at=newest.taken_at, nodes=nodes)


def _phase(fragment: Fragment, report: Report | None) -> str:
    if fragment.state == FragmentState.ENDED:
        return fragment.cause or "ended"
    return str(report.body["phase"]) if report is not None else "starting"


@router.get("/holes")
def list_holes(context: InContext, _: Viewer, since_s: Window = 3600.0) -> HoleList:
    """The holes of the last `since_s` seconds."""
    with context.readers.begin() as session:
        rows = _intervals(session, time.time() - since_s)
    holes = [
        Interval(node=r.node, start_at=r.start_at, end_at=r.end_at) for r in rows if r.state == NodeState.HOLE
    ]
    return HoleList(holes=holes)


def _intervals(session: Session, since: float) -> list[NodeInterval]:
    rows = session.execute(
        select(NodeInterval)
        .where(or_(NodeInterval.end_at.is_(None), NodeInterval.end_at >= since))
        .order_by(NodeInterval.start_at)
    )
    return list(rows.scalars())


@router.get("/timeline")
def show_timeline(context: InContext, _: Viewer, since_s: Window = 180.0) -> Timeline:
    """Nodes x time: foreground jobs, holes and fragments of the last `since_s` seconds."""
    now = time.time()
    since = now - since_s
    with context.readers.begin() as session:
        intervals = _intervals(session, since)
        newest = session.execute(
            select(SnapshotRecord.body).order_by(SnapshotRecord.number.desc()).limit(1)
        ).scalar_one_or_none()
        rows = session.execute(
            select(Fragment, Trainer.name, Report)
            .join(Trainer, Trainer.id == Fragment.trainer_id)
            .outerjoin(Report, Report.fragment_id == Fragment.id)
            .where(or_(Fragment.ended_at.is_(None), Fragment.ended_at >= since))
            .order_by(Fragment.launched_at)
        ).all()
    return Timeline(
        from_at=since,
        to_at=now,
        nodes=[node["name"] for node in (newest or {"nodes": []})["nodes"]],
        foreground=[
            ForegroundInterval(
                node=r.node, start_at=r.start_at, end_at=r.end_at, job=r.job or "", name=r.job_name or r.state
            )
            for r in intervals
            if r.state != NodeState.HOLE
        ],
        holes=[
            Interval(node=r.node, start_at=r.start_at, end_at=r.end_at)
            for r in intervals
            if r.state == NodeState.HOLE
        ],
        fragments=[
            FragmentInterval(
                node=fragment.node,
                start_at=fragment.launched_at,
                end_at=fragment.ended_at,
                fragment=fragment.id,
                trainer=name,
                training_at=fragment.training_at,
                phase=_phase(fragment, report),
            )
            for fragment, name, report in rows
        ],
    )


@router.get("/cluster")
def show_cluster(context: InContext, _: Viewer) -> ClusterView:
    """The cluster at a glance; its sums are of the last seven days."""
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
        members = session.execute(select(Trainer.members).where(Trainer.generation > 0)).scalars()
        num_training = sum(len(member) for member in members)
        idle_node_s = _total_s(
            session, NodeInterval.start_at, NodeInterval.end_at, begin, now, NodeInterval.state == "hole"
        )
        used_node_s = _total_s(
            session, Fragment.training_at, Fragment.ended_at, begin, now, Fragment.training_at.is_not(None)
        )
        starts = select(ForegroundStart.delay_s).where(ForegroundStart.started_at >= begin)
        num_fragments = session.execute(
            select(func.count()).select_from(Fragment).where(Fragment.state != FragmentState.ENDED)
        ).scalar_one()
        held = hold.current(session) is not None
        by_time = list(session.execute(starts.order_by(ForegroundStart.started_at)).scalars())
        delays = sorted(by_time)
    return ClusterView(
        scheduler=context.scheduler.name,
        num_nodes=sum(states.values()),
        num_foreground=states.get(NodeState.FOREGROUND, 0),
        num_holes=states.get(NodeState.HOLE, 0),
        num_training=num_training,
        idle_node_s=idle_node_s,
        used_node_s=min(used_node_s, idle_node_s),
        foreground_jobs_started=len(delays),
        foreground_delay_p50_s=_quantile(delays, 0.5),
        foreground_delay_p99_s=_quantile(delays, 0.99),
        foreground_delay_max_s=delays[-1] if delays else None,
        foreground_delay_last_s=by_time[-1] if by_time else None,
        num_fragments=num_fragments,
        held=held,
        dry_run=context.settings.dry_run,
        snapshot_age_s=_age_s(context.scheduler, now),
    )


@router.post("/cluster/foreground-jobs", status_code=HTTPStatus.CREATED, response_model=ForegroundJobView)
def submit_foreground_job(
    request: ForegroundJobRequest, context: InContext, admin: Admin, key: IdempotencyKey = None
) -> JSONResponse:
    """Hand a foreground job to the embedded cluster, to watch it take its nodes."""
    cluster = context.scheduler
    if not isinstance(cluster, LocalCluster):
        raise Conflict(
            f"foreground jobs are handed in to {cluster.name} itself; this call is for the embedded one"
        )
    if request.nodes > context.settings.local.nodes:
        raise Conflict(f"{request.nodes} nodes: the embedded cluster has {context.settings.local.nodes}")
    with context.sessions.begin() as session:
        return answer_once(
            session,
            admin,
            key,
            {"foreground_job": request.model_dump()},
            HTTPStatus.CREATED,
            lambda: ForegroundJobView(job=cluster.submit_foreground(request.nodes, request.run_s)),
        )


def _age_s(scheduler: Scheduler, now: float) -> float | None:
    """Of the picture that plans are made on."""
    taken_at = scheduler.taken_at()
    return None if taken_at is None else max(0.0, now - taken_at)


def _total_s(
    session: Session,
    start: InstrumentedAttribute[Any],
    end: InstrumentedAttribute[float | None],
    begin: float,
    now: float,
    condition: ColumnElement[bool],
) -> float:
    """Sum of the intervals' parts between `begin` and now; one that has not ended lasts until now."""
    length = case((end.is_(None), now), else_=end) - case((start < begin, begin), else_=start)
    inside = condition & or_(end.is_(None), end >= begin)
    return float(session.execute(select(func.coalesce(func.sum(length), 0.0)).where(inside)).scalar_one())


def _quantile(ordered: list[float], q: float) -> float | None:
    """Nearest-rank quantile."""
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else None
