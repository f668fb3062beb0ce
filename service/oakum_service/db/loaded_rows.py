"""Keeps what a session has loaded until it ends: by itself it forgets rows that nobody holds."""

from __future__ import annotations

from sqlalchemy import event
from sqlalchemy.orm import Session


def keep_loaded(session: Session) -> None:
    """Keep the object of each row that the session loads from now on in memory until the session ends. A later
    query for the same rows then reuses the objects; to make them anew takes most of a query's time. For a session
    that asks for the same rows several times, and ends soon."""
    rows: list[object] = []

    def hold(_: Session, row: object) -> None:
        rows.append(row)

    event.listen(session, "loaded_as_persistent", hold)
