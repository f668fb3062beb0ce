"""Events: what happened, in words, for people and the event stream."""

from __future__ import annotations

import logging
import time
from typing import Any

from sqlalchemy.orm import Session

from oakum_service.db.models import EventRecord

_log = logging.getLogger("oakum")


def record(session: Session, kind: str, subject: str, message: str, **data: Any) -> None:
    """Write an event down with the transaction that makes it true, and log it."""
    session.add(EventRecord(at=time.time(), kind=kind, subject=subject, message=message, data=data))
    _log.info("%-18s %-22s %s", kind, subject, message)
