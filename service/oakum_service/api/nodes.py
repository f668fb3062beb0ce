"""GET /v1/nodes: every node, or what has changed of them since an earlier answer."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Viewer
from oakum_service.api.context import InContext
from oakum_service.api.schemas.cluster import NodeList, NodeView
from oakum_service.control import launch_records
from oakum_service.db.models.cluster import NodeInterval, SnapshotRecord
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.slots import node_of, slots_in
from oakum_worker.protocol import FragmentReport

router = APIRouter(prefix="/v1", tags=["cluster"])

Since = Annotated[
    str | None,
    Query(max_length=40, description="`version` of an earlier answer: give only what has changed since then"),
]


@router.get("/nodes")
def list_nodes(context: InContext, _: Viewer, since: Since = None) -> NodeList:
    """List every node: what it is used for, and which trainer's fragment is on it. With `since`, the nodes that
    have changed since that answer, where the service still has it; `is_difference` tells."""

    def read() -> NodeList:
        with context.readers.begin() as session:
            return _present(session)

    return context.node_lists.answer(context.lists.get("nodes", read), since)


def _present(session: Session) -> NodeList:
    newest = session.execute(
        select(SnapshotRecord).order_by(SnapshotRecord.number.desc()).limit(1)
    ).scalar_one_or_none()
    if newest is None:
        return NodeList(snapshot=0, taken_at=0.0, nodes=[])
    lasting = select(NodeInterval.node, NodeInterval.start_at).where(NodeInterval.end_at.is_(None))
    since = dict(session.execute(lasting).all())
    # Columns, not rows: with a thousand fragments making the rows takes longer than all else.
    rows = session.execute(
        select(Fragment.node, Trainer.name, Report.body)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(Fragment.is_live)
    )
    ours = {slot: (name, phase_of_live(report)) for node, name, report in rows for slot in slots_in(node)}
    avoided = {row.node: row for row in launch_records.avoided(session, time.time())}
    nodes = [
        NodeView(
            name=node.name,
            state=node.state,
            since=since.get(node.name, newest.taken_at),
            node_type=node.node_type,
            foreground_job=node.job,
            trainer=ours.get(node.name, (None, None))[0],
            fragment_phase=ours.get(node.name, (None, None))[1],
            hole_ends_at=node.announced_at,
            avoided_until=None if (row := avoided.get(node_of(node.name))) is None else row.until_at,
            avoided_because="" if row is None else row.public_text,
        )
        for node in newest.body.nodes
    ]
    return NodeList(snapshot=newest.number, taken_at=newest.taken_at, nodes=nodes)


def phase_of(fragment: Fragment, report: Report | None) -> str:
    """What the fragment does, or why it ended."""
    if fragment.state == FragmentState.ENDED:
        return fragment.cause or "ended"
    return phase_of_live(None if report is None else report.body)


def phase_of_live(report: FragmentReport | None) -> str:
    """What a live fragment does, by its agent's newest report; None where the agent has not reported yet."""
    return "starting" if report is None else str(report.phase)
