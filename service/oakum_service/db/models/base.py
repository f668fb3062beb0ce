"""What all tables have in common."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Integer
from sqlalchemy.orm import DeclarativeBase

from oakum_service.db.json_columns import JsonOf

# SQLite counts ids up only in columns of type INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")
LARGEST_ID = 2**63 - 1
"""Largest id that a query may name: that of a signed 64-bit integer."""
NONE_BY_DEFAULT: Any = {"nullable": False, "default": lambda: None}
"""For columns whose type keeps None as `{}`: no row holds NULL."""


class Base(DeclarativeBase):
    """Base of all tables."""

    type_annotation_map = {dict[str, Any]: JSON, tuple[str, ...]: JsonOf(tuple[str, ...])}  # noqa: RUF012
