"""Events: what happened, in words, for people and the event stream."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from oakum_service.db.models import EventRecord

_log = logging.getLogger("oakum")


def record(session: Session, kind: str, subject: str, message: str, **data: Any) -> None:
    """Write an event down with the transaction that makes it true, and log it."""
    session.add(EventRecord(at=time.time(), kind=kind, subject=subject, message=message, data=data))
    _log.info("%-18s %-22s %s", kind, subject, message)


def record_all(session: Session, events: Sequence[tuple[str, str, str]]) -> None:
    """The same for many events at once, each a kind, a subject and a message: a cluster's nodes are thousands."""
    if events:
        at = time.time()
        rows = [
            {"at": at, "kind": kind, "subject": subject, "message": message, "data": {}}
            for kind, subject, message in events
        ]
        session.execute(insert(EventRecord), rows)
    for kind, subject, message in events:
        _log.info("%-18s %-22s %s", kind, subject, message)
