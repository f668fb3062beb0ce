"""How long the foreground jobs of the last week waited for fragments, without reading a week of them each time."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from oakum_service.control.retention import HISTORY_S
from oakum_service.db.models.cluster import ForegroundStart

_SETTLED_S = 3600.0
"""Age from which on a start is seldom recorded; younger ones are read each time."""


class WeekOfDelays:
    """The delays of a week's foreground starts. Those that are settled are read once by this process, and counted
    each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settled: deque[tuple[float, float]] = deque()
        """(start in Unix seconds, delay), the oldest first."""
        self._ordered: list[float] = []
        """The same delays, the shortest first."""
        self._settled_to = 0.0

    def ordered(self, session: Session, now: float) -> tuple[list[float], float | None]:
        """The delays in seconds of the week before `now`, the shortest first, and that of the newest start; None
        without one."""
        with self._lock:
            self._settle(session, now)
            young = _starts(session, self._settled_to, now + _SETTLED_S)
            newest = young[-1] if young else self._settled[-1] if self._settled else None
            return sorted([*self._ordered, *(delay for _, delay in young)]), newest and newest[1]

    def _settle(self, session: Session, now: float) -> None:
        begin, to = now - HISTORY_S, max(self._settled_to, now - _SETTLED_S)
        self._add(_starts(session, max(begin, self._settled_to), to))
        self._settled_to = to
        while self._settled and self._settled[0][0] <= begin:
            _, delay = self._settled.popleft()
            del self._ordered[bisect_left(self._ordered, delay)]
        if session.scalar(select(func.count()).where(*_between(begin, to))) != len(self._settled):
            # A service that was away has recorded what began meanwhile.
            self._settled.clear()
            self._ordered.clear()
            self._add(_starts(session, begin, to))

    def _add(self, starts: Sequence[tuple[float, float]]) -> None:
        self._settled.extend(starts)
        self._ordered = sorted([*self._ordered, *(delay for _, delay in starts)])


def _between(after: float, to: float) -> tuple[ColumnElement[bool], ...]:
    return ForegroundStart.started_at > after, ForegroundStart.started_at <= to


def _starts(session: Session, after: float, to: float) -> Sequence[tuple[float, float]]:
    query = select(ForegroundStart.started_at, ForegroundStart.delay_s).where(*_between(after, to))
    return [(at, delay) for at, delay in session.execute(query.order_by(ForegroundStart.started_at))]
