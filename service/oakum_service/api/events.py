"""/v1/events: events as they happen, as a stream of server-sent events, and the newest past events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.api.auth import Principal, Role, Viewer, is_still_valid
from oakum_service.api.context import Context, InContext
from oakum_service.api.event_feed import EventFeed, event_of
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
"""Most event streams open at once: each is woken at every change."""


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
    request: Request,
    after: Annotated[
        int | None, Query(ge=0, le=LARGEST_ID, description="id of the last event already seen")
    ] = None,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=LARGEST_ID)] = None,
) -> AsyncIterator[ServerSentEvent]:
    """Stream events as they happen. Without `after` and `Last-Event-ID` the stream begins now."""
    feed = request.app.state.event_feed
    assert isinstance(feed, EventFeed)
    position = last_event_id if last_event_id is not None else after
    if position is None:
        position = await feed.newest_id()
    checked_s = time.monotonic()
    while not context.news_for_readers.closed:
        if time.monotonic() - checked_s > _CHECK_S:
            if not await asyncio.to_thread(is_still_valid, context, viewer):
                return
            checked_s = time.monotonic()
        seen = context.news_for_readers.version
        events = await feed.after(position)
        if events is None or (events and viewer.role is Role.USER):
            events = await asyncio.to_thread(_read, context, viewer, position, events)
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
        newest_first = select(EventRecord).order_by(EventRecord.id.desc()).limit(limit)
        events = [event_of(row) for row in session.scalars(newest_first)]
        return EventList(events=_visible(session, viewer, events[::-1]))


def _read(context: Context, viewer: Principal, after: int, events: Sequence[Event] | None) -> list[Event]:
    """The events as the viewer may see them; None stands for the next ones after the id `after`."""
    with context.readers.begin() as session:
        if events is None:
            newer = select(EventRecord).where(EventRecord.id > after).order_by(EventRecord.id).limit(_BATCH)
            events = [event_of(row) for row in session.scalars(newer)]
        return _visible(session, viewer, events)


def _visible(session: Session, viewer: Principal, events: Sequence[Event]) -> list[Event]:
    """The events. For a viewer of the role user, texts that another user's code may have written are left out."""
    others = names_of_others(session, viewer, (event.subject for event in events))
    return [
        _without_text(each) if each.subject in others and is_private_event(each.kind) else each for each in events
    ]


def _without_text(event: Event) -> Event:
    return event.model_copy(update={"message": ONLY_ITS_USER, "data": {}})
