"""The audit log: who did what to whose trainer or token, from where. Rows are only ever added; the database itself
refuses to change them, and to delete any before it is 360 days old."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from oakum_service.db.models.events import AuditRecord

KEPT_S = 365 * 24 * 3600.0
"""Seconds for which every row is kept."""
_LONGEST_ADDRESS = 63


@dataclass(frozen=True)
class Actor:
    """Somebody who acts: name, role, and what tells where the act came from."""

    name: str
    role: str
    token: str = ""
    """Id of the token used; empty without one."""
    request: str = ""
    """Id of the HTTP request; empty for a command on the service's machine."""
    address: str = ""
    """Address that the request came from."""


def local_actor() -> Actor:
    """Whoever runs this process, for commands that write to the database without the API; with the role
    `local`."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        name = f"uid {os.getuid()}"
    return Actor(name[:63], "local")


def record(
    session: Session, actor: Actor, action: str, subject: str, owner: str | None = None, **details: Any
) -> None:
    """Add a row to the audit log in the transaction that carries the act out. `owner` is the user whose trainer or
    token is concerned, who may read the row."""
    session.add(_row(actor, action, subject, owner, details, refused=False))


def record_refusal(session: Session, actor: Actor, request: str, why: str) -> None:
    """Add a row for an act that was refused since the actor may not do it. `request`: its method and path."""
    session.add(_row(actor, "refused", request[:255], None, {"why": why}, refused=True))


def _row(
    actor: Actor, action: str, subject: str, owner: str | None, details: dict[str, Any], *, refused: bool
) -> AuditRecord:
    return AuditRecord(
        at=time.time(),
        actor=actor.name,
        role=actor.role,
        token=actor.token,
        request=actor.request,
        address=actor.address[:_LONGEST_ADDRESS],  # what a proxy says, if the settings name one
        action=action,
        subject=subject,
        owner=owner,
        refused=refused,
        details=details,
    )


def listed(
    session: Session,
    limit: int,
    *,
    reader: str | None = None,
    actor: str | None = None,
    subject: str | None = None,
    action: str | None = None,
    before: int | None = None,
) -> Sequence[AuditRecord]:
    """The newest rows, the newest first. `reader`: only what this user did, or had done to what is theirs;
    `before`: only rows with lower ids."""
    query = select(AuditRecord).order_by(AuditRecord.id.desc()).limit(limit)
    if reader is not None:
        query = query.where(or_(AuditRecord.actor == reader, AuditRecord.owner == reader))
    for column, value in (
        (AuditRecord.actor, actor),
        (AuditRecord.subject, subject),
        (AuditRecord.action, action),
    ):
        if value is not None:
            query = query.where(column == value)
    if before is not None:
        query = query.where(AuditRecord.id < before)
    return session.scalars(query).all()


def forget(session: Session, now: float) -> None:
    """Delete the rows that are older than `KEPT_S`."""
    session.execute(delete(AuditRecord).where(AuditRecord.at < now - KEPT_S))
