"""/v1/events: what happens, as server-sent events, and what has happened lately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import func, select

from oakum_service.api.auth import Viewer
from oakum_service.api.context import Context, InContext
from oakum_service.api.schemas import Event, EventList
from oakum_service.db.models import LARGEST_ID, EventRecord
from oakum_service.errors import ServiceError

router = APIRouter(prefix="/v1/events", tags=["events"])

_BATCH = 200
_KEEP_ALIVE_S = 15.0
_MOST_LISTENERS = 64
"""Each looks into the database at every change."""


async def _one_of_few(context: InContext, _: Viewer) -> AsyncIterator[None]:
    """Count the stream for as long as it is open."""
    if len(context.listeners) >= _MOST_LISTENERS:
        raise ServiceError(f"{_MOST_LISTENERS} event streams are open, as many as there may be: close one")
    listener = object()
    context.listeners.add(listener)
    try:
        yield
    finally:
        context.listeners.discard(listener)


@router.get("", response_class=EventSourceResponse, dependencies=[Depends(_one_of_few)])
async def stream_events(
    context: InContext,
    _: Viewer,
    after: Annotated[
        int | None, Query(ge=0, le=LARGEST_ID, description="id of the last event already seen")
    ] = None,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=LARGEST_ID)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Events as they happen; without `after`, those from now on."""
    position = last_event_id if last_event_id is not None else after
    if position is None:
        position = await asyncio.to_thread(_newest_id, context)
    while not context.outbox.closed:
        seen = context.outbox.version
        events = await asyncio.to_thread(_read, context, position, _BATCH)
        for event in events:
            position = event.id
            yield ServerSentEvent(data=event, event=event.kind, id=str(event.id))
        if not events:
            await context.outbox.wait(seen, _KEEP_ALIVE_S)


@router.get("/recent")
def recent_events(context: InContext, _: Viewer, limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> EventList:
    """The newest events, in order of time."""
    with context.readers.begin() as session:
        rows = session.execute(select(EventRecord).order_by(EventRecord.id.desc()).limit(limit)).scalars()
        return EventList(events=[_event(row) for row in rows][::-1])


def _read(context: Context, after: int, limit: int) -> list[Event]:
    with context.readers.begin() as session:
        rows = session.execute(
            select(EventRecord).where(EventRecord.id > after).order_by(EventRecord.id).limit(limit)
        ).scalars()
        return [_event(row) for row in rows]


def _newest_id(context: Context) -> int:
    with context.readers.begin() as session:
        return session.execute(select(func.max(EventRecord.id))).scalar_one_or_none() or 0


def _event(row: EventRecord) -> Event:
    return Event(id=row.id, at=row.at, kind=row.kind, subject=row.subject, message=row.message, data=row.data)
