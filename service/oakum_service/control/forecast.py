"""Forecast: the nodes that a plan may grant, how long their holes will last, and who holds them."""

from __future__ import annotations

import math
import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models import Fragment, FragmentState, NodeInterval, Report
from oakum_service.schedulers.port import Node, Snapshot
from oakum_service.states import NodeState
from oakum_solver.forecast import HoleForecast, IdleNode
from oakum_worker.protocol import Phase

_PAST_HOLES = 500
_LEAVING = {Phase.LEAVING, Phase.LEFT, Phase.FINISHED, Phase.FAILED}


def holders(session: Session) -> dict[str, str]:
    """Node -> trainer that holds it: its fragment is launched, not released, and not on its way out."""
    rows = session.execute(
        select(Fragment, Report)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(Fragment.state != FragmentState.ENDED, Fragment.released.is_(False))
    )
    return {
        fragment.node: fragment.trainer_id
        for fragment, report in rows
        if report is None or report.body.get("phase") not in _LEAVING
    }


def idle_nodes(session: Session, snapshot: Snapshot, default_s: float, learned: bool) -> list[IdleNode]:
    """Every node in a hole, with the forecast of how long the hole goes on.

    Where no foreground job is announced for the node, that is what past holes taught if `learned`, else for ever.
    If `learned`, nodes that are expected to leave together are of one cohort, too.
    """
    forecast = HoleForecast(past_s=_past_holes(session), default_s=default_s) if learned else None
    started = _hole_starts(session)
    held = holders(session)
    now = time.time()
    nodes = []
    for node in snapshot.nodes:
        if node.state is not NodeState.HOLE:
            continue
        age_s = max(0.0, now - started.get(node.name, now))
        announced_in_s = None if node.announced_at is None else node.announced_at - now
        if forecast is not None:
            horizon_s = forecast.remaining_s(age_s, announced_in_s)
        else:
            horizon_s = math.inf if announced_in_s is None else max(0.0, announced_in_s)
        cohort = _cohort(node, started.get(node.name)) if learned else None
        nodes.append(IdleNode(node.name, horizon_s, held.get(node.name), node.node_type, cohort))
    return nodes


def _cohort(node: Node, started: float | None) -> str:
    """What nodes that are expected to leave together share: their holes began in the same snapshot, so that one
    foreground job had them, or their next job is announced for the same time."""
    return f"idle since {started}" if node.announced_at is None else f"wanted at {node.announced_at}"


def _past_holes(session: Session) -> tuple[float, ...]:
    """Lengths of the newest holes that have ended, the newest last."""
    rows = session.execute(
        select(NodeInterval.start_at, NodeInterval.end_at)
        .where(NodeInterval.state == NodeState.HOLE, NodeInterval.end_at.is_not(None))
        .order_by(NodeInterval.id.desc())
        .limit(_PAST_HOLES)
    )
    return tuple(reversed([float(end_at or 0.0) - start_at for start_at, end_at in rows]))


def _hole_starts(session: Session) -> dict[str, float]:
    rows = session.execute(
        select(NodeInterval.node, NodeInterval.start_at).where(
            NodeInterval.state == NodeState.HOLE, NodeInterval.end_at.is_(None)
        )
    )
    return dict(rows.all())
