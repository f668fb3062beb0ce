"""Plans."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import String, Text
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base, RowId
from oakum_service.documents.grant import Grant


class PlanRecord(Base):
    """A plan, which never changes once it is written."""

    __tablename__ = "plans"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    parent_id: Mapped[int | None] = mapped_column(RowId)
    snapshot: Mapped[int] = mapped_column(RowId)
    made_at: Mapped[float]
    objective: Mapped[str] = mapped_column(Text)
    look_ahead_s: Mapped[float]
    look_ahead_reason: Mapped[str] = mapped_column(Text, default="")
    """Why it looks so far ahead, as a sentence; empty in plans of earlier versions."""
    value: Mapped[float]
    bound: Mapped[float]
    solver: Mapped[str] = mapped_column(String(16))
    solve_s: Mapped[float]
    optimal: Mapped[bool]
    allocations: Mapped[Mapping[str, Grant]] = mapped_column(JsonOf(dict[str, Grant], cached=4))
    """Trainer id -> what the plan gives it."""
