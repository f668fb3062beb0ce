"""Keeps what a session has loaded until it ends: by itself it forgets rows that nobody holds."""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.orm import Session


def keep_loaded(session: Session) -> None:
    """Hold every row that the session loads from now on. Another query for the same rows then finds them made,
    which takes a fraction of making them. For a session that asks for rows several times, and ends soon."""
    rows: list[object] = []

    def hold(_: Session, row: object) -> None:
        rows.append(row)

    event.listen(session, "loaded_as_persistent", hold)
