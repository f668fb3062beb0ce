"""/v1/events: events as they happen, as a stream of server-sent events, and the newest past events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal, Role, Viewer, is_still_valid
from oakum_service.api.context import Context, InContext
from oakum_service.api.ownership import ONLY_ITS_USER, is_private_event, names_of_others
from oakum_service.api.schemas.events import Event, EventList
from oakum_service.db.models.base import LARGEST_ID
from oakum_service.db.models.events import EventRecord
from oakum_service.errors import Busy, ServiceError

router = APIRouter(prefix="/v1/events", tags=["events"])

_BATCH = 200
_KEEP_ALIVE_S = 15.0
_CHECK_S = 5.0
"""Seconds after which a stream looks again whether its token is still valid; an idle one, `_KEEP_ALIVE_S`."""
_MOST_LISTENERS = 256
"""Most event streams open at once: each queries the database at every change."""


async def _one_of_few(context: InContext, viewer: Viewer) -> AsyncIterator[None]:
    """Count an event stream among the open ones while the route runs. Raises `ServiceError` if too many are open,
    and `Busy` if too many are open with the caller's token."""
    if len(context.listeners) >= _MOST_LISTENERS:
        raise ServiceError(f"{_MOST_LISTENERS} event streams are open, the most that are allowed: close one")
    most = context.settings.quota.streams
    if viewer.role is not Role.ADMIN and [*context.listeners.values()].count(viewer.digest) >= most:
        raise Busy(f"{most} event streams are open with this token, the most that are allowed: close one")
    listener = object()
    context.listeners[listener] = viewer.digest
    try:
        yield
    finally:
        del context.listeners[listener]


@router.get("", response_class=EventSourceResponse, dependencies=[Depends(_one_of_few)])
async def stream_events(
    context: InContext,
    viewer: Viewer,
    after: Annotated[
        int | None, Query(ge=0, le=LARGEST_ID, description="id of the last event already seen")
    ] = None,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=LARGEST_ID)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream events as they happen. Without `after` and `Last-Event-ID` the stream begins now."""
    position = last_event_id if last_event_id is not None else after
    if position is None:
        position = await asyncio.to_thread(_newest_id, context)
    checked_s = time.monotonic()
    while not context.news_for_readers.closed:
        if time.monotonic() - checked_s > _CHECK_S:
            if not await asyncio.to_thread(is_still_valid, context, viewer):
                return
            checked_s = time.monotonic()
        seen = context.news_for_readers.version
        events = await asyncio.to_thread(_read, context, viewer, position, _BATCH)
        for event in events:
            position = event.id
            yield ServerSentEvent(data=event, event=event.kind, id=str(event.id))
        if not events:
            await context.news_for_readers.wait(seen, _KEEP_ALIVE_S)


@router.get("/recent")
def recent_events(
    context: InContext, viewer: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 50
) -> EventList:
    """List the newest events, in order of time."""
    with context.readers.begin() as session:
        rows = session.execute(select(EventRecord).order_by(EventRecord.id.desc()).limit(limit)).scalars()
        return EventList(events=_events(session, viewer, rows.all())[::-1])


def _read(context: Context, viewer: Principal, after: int, limit: int) -> list[Event]:
    with context.readers.begin() as session:
        rows = session.execute(
            select(EventRecord).where(EventRecord.id > after).order_by(EventRecord.id).limit(limit)
        ).scalars()
        return _events(session, viewer, rows.all())


def _newest_id(context: Context) -> int:
    with context.readers.begin() as session:
        return session.execute(select(func.max(EventRecord.id))).scalar_one_or_none() or 0


def _events(session: Session, viewer: Principal, rows: Sequence[EventRecord]) -> list[Event]:
    """The API's documents for the rows. For a viewer of the role user, texts that another user's code may have
    written are left out."""
    others = names_of_others(session, viewer, (row.subject for row in rows))
    return [_event(row, is_private=row.subject in others and is_private_event(row.kind)) for row in rows]


def _event(row: EventRecord, *, is_private: bool) -> Event:
    message, data = (ONLY_ITS_USER, {}) if is_private else (row.message, row.data)
    return Event(id=row.id, at=row.at, kind=row.kind, subject=row.subject, message=message, data=data)
