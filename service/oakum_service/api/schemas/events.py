"""Documents of events."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Event(BaseModel):
    """Something that happened; also the data of the event stream."""

    id: int
    at: float
    kind: str
    """`trainer.submitted`, `trainer.running`, `trainer.waiting`, `trainer.finished`, `trainer.failed`,
    `trainer.cancelled`, `trainer.changed`, `trainer.warning`, `trainer.guaranteed`,
    `trainer.paused`, `trainer.unpaused`, `trainer.retried`, `generation.formed`,
    `node.hole`, `node.foreground`, `node.unavailable`, `node.avoided`, `plan.made`, `plan.failed`,
    `launch.refused`, `launch.pending`, `fragment.launched`, `fragment.ready`, `fragment.released`,
    `fragment.renewed`, `fragment.left`, `fragment.lost`, `checkpoint.written`, `notice.failed`,
    `setting.changed`, `service.started`, `scheduler.closed`, `scheduler.opened`, `scheduler.silent`,
    `scheduler.answers`, `service.held`, `service.resumed`, `service.stopping`."""
    subject: str
    """Name of the trainer or node that the event is about."""
    message: str
    data: dict[str, Any] = {}


class EventList(BaseModel):
    """Events, in order of time."""

    events: list[Event]
