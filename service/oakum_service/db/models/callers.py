"""Who may call the API and how much each may have, and the answers to calls that may be repeated."""

from __future__ import annotations

from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.models.base import Base


class ApiToken(Base):
    """A bearer token, kept only as its hash."""

    __tablename__ = "tokens"

    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(63))
    """The user who holds it."""
    role: Mapped[str] = mapped_column(String(16))
    label: Mapped[str] = mapped_column(String(63), default="")
    """What the token is for, in the user's words."""
    created_at: Mapped[float]
    expires_at: Mapped[float | None]
    """From when on it is refused; null: never."""
    used_at: Mapped[float | None]
    """Its last use, to about five minutes; null before the first one."""


class QuotaRecord(Base):
    """One user's quota, where an administrator has set one. Null: what the settings say."""

    __tablename__ = "quotas"

    user_name: Mapped[str] = mapped_column(String(63), primary_key=True)
    trainers: Mapped[int | None]
    """Most live trainers."""
    nodes: Mapped[int | None]
    """Most nodes of all the user's trainers together."""
    node_hours: Mapped[float | None]
    """Most node-hours in a calendar week."""
    storage_gib: Mapped[float | None]
    """Most GiB of checkpoints."""
    weight: Mapped[float | None]
    """Largest weight of a trainer."""
    by_name: Mapped[str] = mapped_column(String(63))
    """Who set it, and `since` when."""
    since: Mapped[float]


class IdempotencyRecord(Base):
    """The answer to a write that carried an Idempotency-Key."""

    __tablename__ = "idempotency"

    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    principal: Mapped[str] = mapped_column(String(64), primary_key=True)
    request: Mapped[str] = mapped_column(String(64))
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    """The answer's JSON, sent again as it is."""
    at: Mapped[float]
