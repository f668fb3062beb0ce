"""How long the foreground jobs of the last week waited for fragments, without reading a week of them each time."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from oakum_service.control.retention import HISTORY_S
from oakum_service.db.models.cluster import ForegroundStart

_SETTLED_S = 3600.0
"""Age from which on a start is seldom recorded; younger ones are read each time."""


class PeriodOfDelays(NamedTuple):
    """The foreground jobs that started in one period, in Unix seconds, and the delays of these in seconds."""

    from_at: float
    to_at: float
    starts: int
    p50_s: float
    p99_s: float
    max_s: float


class WeekOfDelays:
    """The delays of a week's foreground starts. Those that are settled are read once by this process, and counted
    each time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        """When the settled starts were, in Unix seconds, the oldest first."""
        self._delays: list[float] = []
        """The delay of each of these."""
        self._ordered: list[float] = []
        """The same delays, the shortest first."""
        self._settled_to = 0.0
        self._periods: dict[tuple[float, int], PeriodOfDelays | None] = {}
        """(length, number) -> the delays of a period of settled starts."""

    def ordered(self, session: Session, now: float) -> tuple[list[float], float | None]:
        """The delays in seconds of the week before `now`, the shortest first, and that of the newest start; None
        without one."""
        with self._lock:
            young = self._settle(session, now)
            delays = [delay for _, delay in young]
            known = delays or self._delays
            return sorted([*self._ordered, *delays]), known[-1] if known else None

    def periods(self, session: Session, since_s: float, now: float, length_s: float) -> list[PeriodOfDelays]:
        """The periods in which a job started within the last `since_s` seconds, at most a week. Periods begin at
        multiples of their length; of the first one, only those starts count that are within the time."""
        begin = now - since_s
        with self._lock:
            young = self._settle(session, now)
            first = math.floor(begin / length_s)
            last = math.floor(max(now, young[-1][0] if young else now) / length_s)
            periods = [self._period(number, length_s, begin, young) for number in range(first, last + 1)]
        return [period for period in periods if period is not None]

    def _period(
        self, number: int, length_s: float, begin: float, young: Sequence[tuple[float, float]]
    ) -> PeriodOfDelays | None:
        from_at, to_at = number * length_s, (number + 1) * length_s
        is_settled = begin <= from_at and to_at <= self._settled_to
        if is_settled and (length_s, number) in self._periods:
            return self._periods[length_s, number]
        low, high = bisect_left(self._times, max(begin, from_at)), bisect_left(self._times, to_at)
        delays = self._delays[low:high]
        if not is_settled:
            delays += [delay for at, delay in young if max(begin, from_at) <= at < to_at]
        period = _summary(from_at, to_at, sorted(delays)) if delays else None
        if is_settled:
            self._periods[length_s, number] = period
        return period

    def _settle(self, session: Session, now: float) -> Sequence[tuple[float, float]]:
        """Take in what has settled. Returns the starts, (time, delay), that have not, the oldest first."""
        begin, to = now - HISTORY_S, max(self._settled_to, now - _SETTLED_S)
        self._add(_starts(session, max(begin, self._settled_to), to))
        self._settled_to = to
        num_old = bisect_right(self._times, begin)
        for delay in self._delays[:num_old]:
            del self._ordered[bisect_left(self._ordered, delay)]
        del self._times[:num_old], self._delays[:num_old]
        self._periods = {key: kept for key, kept in self._periods.items() if (key[1] + 1) * key[0] > begin}
        if session.scalar(select(func.count()).where(*_between(begin, to))) != len(self._times):
            # A service that was away has recorded what began meanwhile.
            self._times, self._delays, self._ordered, self._periods = [], [], [], {}
            self._add(_starts(session, begin, to))
        return _starts(session, to, now + _SETTLED_S)

    def _add(self, starts: Sequence[tuple[float, float]]) -> None:
        self._times += [at for at, _ in starts]
        self._delays += [delay for _, delay in starts]
        self._ordered = sorted([*self._ordered, *(delay for _, delay in starts)])


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """The nearest-rank quantile of ordered values: the least of them that a share `q` of all, above 0, does not
    exceed. None if there are none."""
    return ordered[math.ceil(q * len(ordered)) - 1] if ordered else None


def _summary(from_at: float, to_at: float, ordered: Sequence[float]) -> PeriodOfDelays:
    p50_s, p99_s = quantile(ordered, 0.5), quantile(ordered, 0.99)
    assert p50_s is not None
    assert p99_s is not None
    return PeriodOfDelays(from_at, to_at, len(ordered), p50_s, p99_s, ordered[-1])


def _between(after: float, to: float) -> tuple[ColumnElement[bool], ...]:
    return ForegroundStart.started_at > after, ForegroundStart.started_at <= to


def _starts(session: Session, after: float, to: float) -> Sequence[tuple[float, float]]:
    query = select(ForegroundStart.started_at, ForegroundStart.delay_s).where(*_between(after, to))
    return [(at, delay) for at, delay in session.execute(query.order_by(ForegroundStart.started_at))]
