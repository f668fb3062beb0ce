"""What happened, for people: events, notices, and the audit log."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base, RowId
from oakum_service.documents.notice import Notice


class EventRecord(Base):
    """Something that happened, for people and for the SSE stream."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at: Mapped[float]
    kind: Mapped[str] = mapped_column(String(32))
    subject: Mapped[str] = mapped_column(String(255))
    message: Mapped[str] = mapped_column(Text)
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Facts of the event by name, which differ from kind to kind; passed on to people and not read here."""


class AuditRecord(Base):
    """One act of a user or an administrator. The database refuses changes of these rows."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    at: Mapped[float] = mapped_column(index=True)
    actor: Mapped[str] = mapped_column(String(63))
    role: Mapped[str] = mapped_column(String(16))
    token: Mapped[str] = mapped_column(String(12))
    """Id of the token used; empty without one."""
    request: Mapped[str] = mapped_column(String(64))
    """Id of the HTTP request, as in its answer's header `X-Request-ID`."""
    address: Mapped[str] = mapped_column(String(63))
    action: Mapped[str] = mapped_column(String(32))
    """What was done, such as trainer.cancelled; `refused` where the role or the owner did not allow it."""
    subject: Mapped[str] = mapped_column(String(255))
    owner: Mapped[str | None] = mapped_column(String(63))
    """User whose trainer or token is concerned."""
    refused: Mapped[bool]
    details: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """Facts of the act by name; passed on to people and not read here."""

    __table_args__ = (Index("ix_audit_actor", "actor", "id"), Index("ix_audit_subject", "subject", "id"))


class NoticeRecord(Base):
    """A notice about a trainer's event, to be sent to one recipient; with an empty `channel`, to all
    recipients."""

    __tablename__ = "notices"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    """Id derived from the trainer, the event and the recipient; receivers drop a repeated notice by its id."""
    event: Mapped[str] = mapped_column(String(16))
    trainer_id: Mapped[str] = mapped_column(String(36))
    channel: Mapped[str] = mapped_column(String(16), default="")
    """webhook or email."""
    target: Mapped[str] = mapped_column(Text, default="")
    document: Mapped[Notice] = mapped_column(JsonOf(Notice))
    """The notice's content."""
    created_at: Mapped[float]
    due_at: Mapped[float | None] = mapped_column(index=True)
    """When the next attempt to send is due; null once the notice was accepted or given up."""
    attempts: Mapped[int] = mapped_column(default=0)
    sent_at: Mapped[float | None]
    error: Mapped[str] = mapped_column(Text, default="")
    """Error of the last attempt; empty if the recipient accepted the notice."""

    __table_args__ = (Index("ix_notices_trainer", "trainer_id", "created_at"),)
