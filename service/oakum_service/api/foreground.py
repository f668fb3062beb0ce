"""GET /v1/foreground/starts: how long foreground jobs waited for fragments to leave their nodes."""

from __future__ import annotations

import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from sqlalchemy import select

from oakum_service.api.auth import Viewer
from oakum_service.api.cluster import SinceS
from oakum_service.api.context import InContext
from oakum_service.api.paging import Before, Place, older_than, page, place
from oakum_service.api.schemas.foreground import DelayPeriod, ForegroundStarts, ForegroundStartView
from oakum_service.db.models.cluster import ForegroundStart

router = APIRouter(prefix="/v1/foreground", tags=["cluster"])

_MOST_PERIODS = 48
_PERIODS_S = (300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0)


@router.get("/starts")
def list_starts(
    context: InContext,
    _: Viewer,
    since_s: SinceS = 86400.0,
    order: Annotated[
        Literal["newest", "longest"], Query(description="the newest first, or those that waited longest")
    ] = "newest",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    before: Before = None,
) -> ForegroundStarts:
    """List foreground jobs that started in the last `since_s` seconds, how long each waited for fragments to leave
    its nodes, and the trend over that time; `before` gives earlier ones, in the order of time."""
    now = time.time()
    begin = now - since_s
    within = select(ForegroundStart).where(ForegroundStart.started_at >= begin)
    rows = within.order_by(ForegroundStart.started_at.desc(), ForegroundStart.job.desc())
    if order == "longest":
        rows = within.order_by(ForegroundStart.delay_s.desc(), ForegroundStart.job.desc())
    elif before is not None:
        rows = rows.where(older_than(ForegroundStart.started_at, ForegroundStart.job, place(before)))
    with context.readers.begin() as session:
        shown, has_more = page(session.execute(rows.limit(limit + 1)).scalars().all(), limit)
        periods = context.delays.periods(session, since_s, now, _length_s(since_s))
        starts = [
            ForegroundStartView(
                job=row.job, started_at=row.started_at, num_nodes=row.num_nodes, delay_s=row.delay_s
            )
            for row in shown
        ]
    last = starts[-1] if starts else None
    has_next = has_more and last is not None and order == "newest"
    return ForegroundStarts(
        starts=starts,
        next=str(Place(last.started_at, last.job)) if has_next and last is not None else None,
        trend=[DelayPeriod(**period._asdict()) for period in periods],
    )


def _length_s(since_s: float) -> float:
    """The shortest period of which at most 48 are as long as the time."""
    return next((each for each in _PERIODS_S if since_s / each <= _MOST_PERIODS), _PERIODS_S[-1])
