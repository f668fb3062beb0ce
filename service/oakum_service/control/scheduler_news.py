"""Tells what has changed about the scheduler itself: that it begins no job of ours, or does not answer."""

from __future__ import annotations

import logging

from sqlalchemy.orm import Session

from oakum_service.db import event_log
from oakum_service.db.lease import LeaseHolder
from oakum_service.schedulers.port import Scheduler, Snapshot
from oakum_service.standing import moment

_log = logging.getLogger("oakum")


def note_scheduler(session: Session, lease: LeaseHolder, scheduler: Scheduler, snapshot: Snapshot) -> None:
    """Record in the controller's transaction what it has seen of the scheduler, with an event, and a line of the
    log, for what has changed."""
    silence = scheduler.silence()
    before = lease.note_snapshot(session, snapshot.taken_at, snapshot.closed, silence)
    if snapshot.closed != before.closed:
        kind = "scheduler.closed" if snapshot.closed else "scheduler.opened"
        text = f"begins no job of Oakum: {snapshot.closed}" if snapshot.closed else "begins jobs again"
        event_log.record(session, kind, scheduler.name, text)
    if silence is not None and before.silence is None:
        text = (
            f"has not answered since {moment(silence.since)}: {silence.tried}. Trainers go on, nothing is planned "
            "or launched until it answers"
        )
        _log.warning("%s %s", scheduler.name, text)
        event_log.record(session, "scheduler.silent", scheduler.name, text)
    elif silence is None and before.silence is not None:
        text = f"answers again; it had not since {moment(before.silence.since)}"
        _log.warning("%s %s", scheduler.name, text)
        event_log.record(session, "scheduler.answers", scheduler.name, text)
