"""What is to be done once a transaction has been committed, such as counting what it has recorded."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.orm import Session


def after_commit(session: Session, act: Callable[[], None]) -> None:
    """Have `act` called when the session's transaction is committed; after a rollback, never. The session must be
    one for a single transaction."""

    def committed(_: Session) -> None:
        act()

    event.listen(session, "after_commit", committed, once=True)
