"""The newest events, read once after each change for all open event streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sqlalchemy import select

from oakum_service.api.schemas.events import Event
from oakum_service.api.shared_reading import SharedReading
from oakum_service.change_signal import ChangeSignal
from oakum_service.db.engine import Sessions
from oakum_service.db.models.events import EventRecord

_KEPT = 1000


class EventFeed:
    """Keeps the newest events in memory. Events become visible in the order of their ids, so each change calls for
    those alone that are newer than the newest known."""

    def __init__(self, readers: Sessions, changes: ChangeSignal) -> None:
        self._readers = readers
        self._reading = SharedReading(changes, self._read)
        self._newest: deque[Event] = deque(maxlen=_KEPT)

    async def newest_id(self) -> int:
        """The id of the newest event; 0 if there is none."""
        await self._reading.refresh()
        return self._newest[-1].id if self._newest else 0

    async def after(self, position: int) -> Sequence[Event] | None:
        """The events whose ids are above `position`, oldest first; None if that is so long ago that they have
        to be read from the database."""
        await self._reading.refresh()
        if not self._newest or self._newest[-1].id <= position:
            return ()
        if self._newest[0].id > position + 1:
            return None
        return [event for event in self._newest if event.id > position]

    def _read(self) -> None:
        newest_first = select(EventRecord).order_by(EventRecord.id.desc()).limit(_KEPT)
        with self._readers.begin() as session:
            if self._newest:
                newest_first = newest_first.where(EventRecord.id > self._newest[-1].id)
            events = [event_of(row) for row in session.scalars(newest_first)]
        self._newest.extend(reversed(events))


def event_of(row: EventRecord) -> Event:
    """The API's document for an event, with its text whoever reads it."""
    return Event(id=row.id, at=row.at, kind=row.kind, subject=row.subject, message=row.message, data=row.data)
