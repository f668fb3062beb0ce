"""The event log: what happened, in words, for people and for the event stream."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db.models.events import EventRecord

_log = logging.getLogger("oakum")


def record(session: Session, kind: str, subject: str, message: str, **data: Any) -> None:
    """Add an event to the session, so that it is written in the transaction that makes it true, and write it to
    the log."""
    session.add(EventRecord(at=clock.now(), kind=kind, subject=subject, message=message, data=data))
    _write(kind, subject, message)


def record_all(session: Session, events: Sequence[tuple[str, str, str]]) -> None:
    """Record many events at once, each a (kind, subject, message): the first snapshot of a cluster has
    thousands."""
    if events:
        at = clock.now()
        rows = [
            {"at": at, "kind": kind, "subject": subject, "message": message, "data": {}}
            for kind, subject, message in events
        ]
        session.execute(insert(EventRecord), rows)
    for kind, subject, message in events:
        _write(kind, subject, message)


def _write(kind: str, subject: str, message: str) -> None:
    fields = {"event": kind, "subject": subject}
    _log.info("%-18s %-22s %s", kind, subject, message, extra={"fields": fields})
