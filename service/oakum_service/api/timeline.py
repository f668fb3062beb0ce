"""/v1/timeline: nodes over time, whole or in the forms that pictures of thousands of nodes need."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Viewer
from oakum_service.api.cluster import SinceS
from oakum_service.api.context import InContext
from oakum_service.api.intervals import announcements, intervals, present_nodes
from oakum_service.api.node_columns import announced_columns, fragment_columns, stretch_columns
from oakum_service.api.nodes import phase_of
from oakum_service.api.schemas.intervals import ForegroundInterval, FragmentInterval, Interval, Timeline
from oakum_service.api.schemas.node_history import (
    FoundNodes,
    Occupancy,
    OccupancyBand,
    TimelineRows,
)
from oakum_service.control.retention import HISTORY_S
from oakum_service.control.usage import hourly_usage
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.announcement import Announcement
from oakum_service.errors import RequestError
from oakum_service.node_history.bars import (
    Window,
    announced_bars,
    complete_from,
    fragment_bars,
    merged_fragments,
    merged_stretches,
    stretches,
)
from oakum_service.node_history.occupancy import USES, Shares, band_edges
from oakum_service.node_history.search import nodes_that_ran
from oakum_service.states import NodeState

router = APIRouter(prefix="/v1/timeline", tags=["cluster"])

_LONGEST_S = 31 * 86400.0
_MOST_NODES = 400
_MOST_ENDED = 5000
"""Ended stretches of each kind in one answer: each takes 50 microseconds."""
_MOST_CELLS = 200_000
"""Bands times columns of a picture."""
_SHORTEST_S = 1.0
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_HOUR_S = 3600.0

At = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False, description="Unix seconds")]


@router.get("")
def show_timeline(
    context: InContext,
    _: Viewer,
    since_s: SinceS = 180.0,
    limit: Annotated[
        int, Query(ge=1, le=200_000, description=f"most ended stretches of each kind; {_MOST_ENDED} of more")
    ] = _MOST_ENDED,
) -> Timeline:
    """Show nodes over time: foreground jobs, holes and fragments of the last `since_s` seconds, or of less where
    these have more than `limit` ended stretches; `from_at` tells."""
    now = time.time()
    with context.readers.begin() as session:
        since = _shortened(session, now - since_s, min(limit, _MOST_ENDED))
        lasting = intervals(session, NodeInterval.end_at.is_(None))
        rows = [*intervals(session, NodeInterval.end_at >= since), *lasting]
        names = [node.name for node in present_nodes(session).nodes]
        fragments = [
            *_fragment_intervals(session, Fragment.ended_at >= since),
            *_fragment_intervals(session, Fragment.ended_at.is_(None)),
        ]
    rows.sort(key=lambda row: row.start_at)
    return Timeline(
        from_at=since,
        to_at=now,
        is_shortened=since > now - since_s,
        nodes=names,
        foreground=[
            ForegroundInterval(
                node=r.node, start_at=r.start_at, end_at=r.end_at, job=r.job or "", name=r.job_name or r.state
            )
            for r in rows
            if r.state != NodeState.HOLE
        ],
        holes=[
            Interval(node=r.node, start_at=r.start_at, end_at=r.end_at) for r in rows if r.state == NodeState.HOLE
        ],
        fragments=sorted(fragments, key=lambda each: each.start_at),
    )


def _shortened(session: Session, since: float, limit: int) -> float:
    """The time from which on there are at most `limit` ended intervals of nodes, and as many ended fragments;
    `since` where there are not more from then on."""
    for column in (NodeInterval.end_at, Fragment.ended_at):
        ended = select(column).where(column >= since).order_by(column.desc()).offset(limit).limit(1)
        over = session.execute(ended).scalar_one_or_none()
        since = since if over is None else math.nextafter(over, math.inf)
    return since


def _fragment_intervals(session: Session, condition: ColumnElement[bool]) -> Iterator[FragmentInterval]:
    rows = session.execute(
        select(Fragment, Trainer.name, Report)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .outerjoin(Report, (Report.fragment_id == Fragment.id) & Fragment.is_live)
        .where(condition)
    )
    for fragment, name, report in rows:
        yield from (
            FragmentInterval(
                node=slot,
                start_at=fragment.launched_at,
                end_at=fragment.ended_at,
                fragment=fragment.id,
                trainer=name,
                training_at=fragment.training_at,
                phase=phase_of(fragment, report),
            )
            for slot in fragment.slots
        )


@router.get("/rows")
def show_rows(
    context: InContext,
    _: Viewer,
    from_at: At,
    to_at: At,
    node: Annotated[list[str], Query(min_length=1, max_length=_MOST_NODES, description="a node that is shown")],
    resolution_s: Annotated[
        float, Query(ge=0, le=86400, allow_inf_nan=False, description="merge what is shorter: a pixel's seconds")
    ] = 0.0,
    changed_after: Annotated[
        float | None,
        Query(ge=0, le=1e11, allow_inf_nan=False, description="only what began or ended since then; Unix seconds"),
    ] = None,
) -> TimelineRows:
    """Show what some nodes did in a window of time, and the fragments on them, in columns; where the window goes
    on after now, also which foreground jobs and reservations the scheduler expects there. Where there is more than
    one answer may hold, the newest are shown, since `kept_from`."""
    now = time.time()
    window = _window(from_at, min(to_at, now))
    with context.readers.begin() as session:
        since = complete_from(session, node, window, changed_after)
        since_change = Window(since, window.to_at)
        done = stretches(session, node, since_change, changed_after)
        fragments = fragment_bars(session, node, since_change, changed_after)
        announced = announcements(session)
    to_come = announced_bars(announced.soonest, node, now, to_at) if to_at > now else []
    if changed_after is None:
        done = list(merged_stretches(done, resolution_s))
        fragments = list(merged_fragments(fragments, resolution_s))
    trainers = sorted({bar.trainer for bar in fragments})
    places = {name: place for place, name in enumerate(node)}
    return TimelineRows(
        from_at=window.from_at,
        to_at=window.to_at,
        kept_from=since if since > window.from_at else now - HISTORY_S,
        is_difference=changed_after is not None,
        nodes=node,
        trainers=trainers,
        stretches=stretch_columns(done, places, window.from_at),
        fragments=fragment_columns(fragments, places, trainers, window.from_at),
        announced=announced_columns(to_come, places, window.from_at),
        announced_from_at=_soonest(announced.soonest, now),
        announced_left_out=announced.left_out,
    )


def _window(from_at: float, to_at: float) -> Window:
    if not _SHORTEST_S <= to_at - from_at <= _LONGEST_S:
        raise RequestError(
            f"from_at={from_at:.0f} to to_at={to_at:.0f} is {to_at - from_at:.0f} s, of which the past alone"
            f" counts: ask for {_SHORTEST_S:.0f} s to {_LONGEST_S / 86400:.0f} days"
        )
    return Window(from_at, to_at)


def _soonest(announced: Sequence[Announcement], now: float) -> float | None:
    """When the first begins of what is not over."""
    return min((each.start_at for each in announced if each.end_at is None or each.end_at > now), default=None)


@router.get("/nodes")
def find_nodes(
    context: InContext,
    _: Viewer,
    from_at: At,
    to_at: At,
    find: Annotated[
        str,
        Query(
            min_length=1,
            max_length=255,
            description="part of the name of a node, a trainer, its user or a foreground job, or of the job's id",
        ),
    ],
) -> FoundNodes:
    """Find the present nodes whose names have this text in them, in capitals or small letters, and those on which
    in a window of time a trainer or a foreground job ran whose name, user or id has. Where there is more than one
    answer may look through, what ended last in the window is looked through; `is_complete` tells."""
    window = _window(from_at, min(to_at, time.time()))
    with context.readers.begin() as session:
        present = [node.name for node in present_nodes(session).nodes]
        ran, is_complete = nodes_that_ran(session, find, window)
    wanted = find.lower()
    return FoundNodes(
        from_at=window.from_at,
        to_at=window.to_at,
        nodes=[name for name in present if name in ran or wanted in name.lower()],
        is_complete=is_complete,
    )


@router.get("/occupancy")
def show_occupancy(
    context: InContext,
    _: Viewer,
    from_at: At,
    to_at: At,
    columns: Annotated[int, Query(ge=1, le=2000, description="most parts of the window")] = 300,
    bands: Annotated[int, Query(ge=1, le=500, description="most groups of neighbouring nodes")] = 1,
) -> Occupancy:
    """Show which share of the nodes' time was foreground, training or idle: all nodes at once, in bands of
    neighbouring ones."""
    now = time.time()
    window = _window(from_at, min(to_at, now))
    known = Window(now - HISTORY_S, now)
    with context.readers.begin() as session:
        nodes = [node.name for node in present_nodes(session).nodes]
        if not nodes:
            return Occupancy(**window._asdict(), kept_from=known.from_at, columns=0, bands=[])
        columns = min(columns, max(1, _MOST_CELLS // min(bands, len(nodes))))
        window, shares = context.kept_hours.occupancy(session, nodes, window, (bands, columns), known)
        if bands == 1 and window.from_at < known.from_at:
            _add_sums(session, shares, window, known.from_at, len(nodes))
    return Occupancy(
        from_at=window.from_at,
        to_at=window.to_at,
        kept_from=known.from_at,
        columns=shares.shape[2],
        bands=_bands(shares, nodes),
    )


def _add_sums(session: Session, shares: Shares, window: Window, kept_from: float, num_nodes: int) -> None:
    """Fill the columns before `kept_from` from the sums of whole hours, which know holes and training alone."""
    width_s = (window.to_at - window.from_at) / shares.shape[2]
    hours = hourly_usage(session, window.from_at, kept_from)
    for column in range(shares.shape[2]):
        begin = window.from_at + column * width_s
        usage = hours.get(math.floor((begin + width_s / 2) / _HOUR_S))
        if begin + width_s <= kept_from and usage is not None:
            shares[USES.index("hole"), 0, column] = min(1.0, usage.idle_node_s / (num_nodes * _HOUR_S))
            shares[USES.index("training"), 0, column] = min(1.0, usage.used_node_s / (num_nodes * _HOUR_S))


def _bands(shares: Shares, nodes: Sequence[str]) -> list[OccupancyBand]:
    foreground, hole, training = shares
    training = np.minimum(training, hole)  # a fragment may be on its node for a moment longer than the hole lasts
    idle = hole - training
    edges = band_edges(len(nodes), shares.shape[1])
    return [
        OccupancyBand(
            first=nodes[edges[band]],
            num_nodes=int(edges[band + 1] - edges[band]),
            foreground=_digits(foreground[band]),
            training=_digits(training[band]),
            idle=_digits(idle[band]),
        )
        for band in range(shares.shape[1])
    ]


def _digits(shares: Shares) -> str:
    return "".join(_DIGITS[round(share)] for share in (shares * 35.0).tolist())
