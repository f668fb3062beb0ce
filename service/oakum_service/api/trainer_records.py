"""/v1/trainers/REF/...: a trainer's series, evaluations, logs and use of nodes, and why it has so many of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select

from oakum_service.api.auth import Viewer
from oakum_service.api.context import InContext
from oakum_service.api.logs import read_log
from oakum_service.api.ownership import check_may_read, visible_view
from oakum_service.api.schemas.node_uses import NodeUsePoint, NodeUseSeries, ShareView, UsedNode
from oakum_service.api.schemas.series import EvaluationList, EvaluationView, Series
from oakum_service.api.schemas.trainers import (
    Explanation,
    LogText,
)
from oakum_service.api.series import points_of
from oakum_service.api.views import explanation, find_trainer, trainer_view
from oakum_service.control import node_uses
from oakum_service.control.thinning import POINTS, Point, at_most
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.progress import EvaluationRecord, ProgressSample
from oakum_service.states import TrainerState

router = APIRouter(prefix="/v1/trainers", tags=["trainers"])

_BEFORE_S = 120.0
"""Seconds of samples before the first point that is asked for: a point may depend on the sample before it."""

_AT_ONCE = 50
"""Evaluations that are read at once."""
_MOST_NODES = 200
"""Nodes that one answer names."""
_MOST_CHARACTERS = 2_000_000
"""Of the metrics in one answer; each counts 20 with its name."""


@router.get("/{ref}/series", response_model_exclude_unset=True)
def show_series(
    ref: str,
    context: InContext,
    viewer: Viewer,
    limit: Annotated[int, Query(ge=1, le=5000)] = 600,
    after: Annotated[
        float, Query(ge=0, le=1e11, allow_inf_nan=False, description="only later points; Unix seconds")
    ] = 0.0,
    from_at: Annotated[
        float | None,
        Query(
            ge=0,
            le=1e11,
            allow_inf_nan=False,
            description="all points from this time on, in Unix seconds, neighbours put together to fit the limit; "
            "0: the whole run",
        ),
    ] = None,
    to_at: Annotated[
        float, Query(ge=0, le=1e11, allow_inf_nan=False, description="with `from_at`: up to this time")
    ] = 1e11,
) -> Series:
    """Show the newest chart points of a trainer, or those of a time, in order of time."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        check_may_read(viewer, trainer)
        mine = POINTS.where(ProgressSample.trainer_id == trainer.id, ProgressSample.at >= after - _BEFORE_S)
        if from_at is None:
            rows = session.execute(mine.order_by(ProgressSample.id.desc()).limit(limit)).all()[::-1]
        else:
            within = mine.where(ProgressSample.at.between(from_at, to_at))
            rows = session.execute(within.order_by(ProgressSample.id)).all()
        is_idle = not TrainerState(trainer.state).ended and not trainer.members
        now = time.time()
        shown = at_most([Point(*row) for row in rows], limit)
        points = points_of(shown, now if is_idle and to_at >= now else None)
        return Series(points=[point for point in points if point.at > after])


@router.get("/{ref}/node-use")
def show_node_use(
    ref: str,
    context: InContext,
    viewer: Viewer,
    node: Annotated[str | None, Query(max_length=255, description="of this node alone; default: of all")] = None,
    from_at: Annotated[
        float, Query(ge=0, le=1e11, allow_inf_nan=False, description="from this time on, in Unix seconds")
    ] = 0.0,
    to_at: Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False, description="up to this time")] = 1e11,
    limit: Annotated[
        int, Query(ge=1, le=1000, description="about how many points, neighbours put together")
    ] = 300,
) -> NodeUseSeries:
    """Show how much of the trainer's nodes was in use, as the agents of its fragments have seen it."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        check_may_read(viewer, trainer)
        samples = node_uses.samples_of(session, trainer.id, from_at, to_at)
        live = select(Fragment.node).where(Fragment.trainer_id == trainer.id, Fragment.is_live)
        present = set(session.scalars(live))
    newest = node_uses.newest_of(samples)
    wanted = [sample for sample in samples if node is None or sample.node == node]
    return NodeUseSeries(
        nodes=[
            UsedNode(
                node=name,
                at=last.at,
                is_present=name in present,
                **{size: getattr(last, size) for size in node_uses.SIZES},
            )
            for name, last in islice(newest.items(), _MOST_NODES)
        ],
        points=[
            NodeUsePoint(
                at=point.at,
                after_gap=point.after_gap,
                **{name: ShareView(**share._asdict()) for name, share in point.shares.items()},
            )
            for point in node_uses.points_of(wanted, limit)
        ],
    )


@router.get("/{ref}/evaluations")
def list_evaluations(
    ref: str,
    context: InContext,
    viewer: Viewer,
    after_step: Annotated[int, Query(ge=-1, lt=2**31)] = -1,
    limit: Annotated[int, Query(ge=1, le=5000)] = 1000,
    newest: Annotated[bool, Query(description="the last ones up to the limit instead of the first ones")] = False,
) -> EvaluationList:
    """List a trainer's evaluations after a step, in order of steps: the first up to the limit, or the newest.
    There are fewer where they have many metrics: ask on after the last step until there are none."""
    order = EvaluationRecord.step.desc() if newest else EvaluationRecord.step
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        check_may_read(viewer, trainer)
        rows = session.scalars(
            select(EvaluationRecord)
            .where(EvaluationRecord.trainer_id == trainer.id, EvaluationRecord.step > after_step)
            .order_by(order)
            .limit(limit)
            .execution_options(yield_per=_AT_ONCE)
        )
        views = list(_up_to(_MOST_CHARACTERS, rows))
    return EvaluationList(evaluations=sorted(views, key=lambda one: one.step))


def _up_to(most: int, rows: Iterable[EvaluationRecord]) -> Iterator[EvaluationView]:
    """The first of the rows: at least one, and no more than have about so many characters."""
    size = 0
    for row in rows:
        yield EvaluationView(step=row.step, at=row.at, metrics=row.metrics)
        size += sum(20 + len(name) for name in row.metrics)
        if size > most:
            return


@router.get("/{ref}/logs")
def show_logs(
    ref: str, context: InContext, viewer: Viewer, tail: Annotated[int, Query(ge=1, le=10_000)] = 200
) -> LogText:
    """Show the newest lines that the trainer's fragments wrote."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        check_may_read(viewer, trainer)
        return LogText(lines=read_log(session, context.settings.fragments_dir, trainer.id, tail))


@router.get("/{ref}/explain")
def explain_trainer(ref: str, context: InContext, viewer: Viewer) -> Explanation:
    """Say why the trainer has its number of nodes."""
    with context.readers.begin() as session:
        trainer = find_trainer(session, ref)
        view = visible_view(viewer, trainer, trainer_view(session, trainer, context.circumstances()))
        return explanation(session, trainer, view)
