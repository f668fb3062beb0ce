"""What administrators tell the service of how long nodes stay idle, before it has seen enough of that itself."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db.models.installation import GivenForecast

_ROW = 1


def given(session: Session) -> GivenForecast | None:
    """What was told last; None where nothing was."""
    return session.get(GivenForecast, _ROW)


def give(session: Session, source: str, lengths_s: Sequence[float], by_name: str) -> None:
    """Keep these lengths of idle times, in seconds, and who told them, in place of what was kept before."""
    row = GivenForecast(
        id=_ROW, source=source, lengths_s=tuple(sorted(lengths_s)), by_name=by_name, at=clock.now()
    )
    session.merge(row)
    session.flush()


def withdraw(session: Session) -> bool:
    """Let only what the service has seen count. Returns whether anything had been told."""
    row = given(session)
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True
