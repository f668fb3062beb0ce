"""Events: what happened, in words, for people and the event stream."""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from oakum_service.db.models import EventRecord

_log = logging.getLogger("oakum")
_KEPT = 20_000


def record(session: Session, kind: str, subject: str, message: str, **data: Any) -> None:
    """Write an event down with the transaction that makes it true, and log it."""
    session.add(EventRecord(at=time.time(), kind=kind, subject=subject, message=message, data=data))
    _log.info("%-18s %-22s %s", kind, subject, message)


def prune(session: Session) -> None:
    """Forget the oldest events beyond the newest 20,000."""
    newest = session.execute(select(func.max(EventRecord.id))).scalar_one_or_none()
    if newest is not None and newest > _KEPT:
        session.execute(delete(EventRecord).where(EventRecord.id <= newest - _KEPT))
