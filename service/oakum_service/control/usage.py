"""Node-time that was idle and that training used: sums over time.

Sums of whole hours of the past are kept, so that a sum over days reads a row for each hour and, for the time since
the last such hour, the intervals and fragments themselves.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.usage import UsageHour
from oakum_service.documents.slots import slots_in
from oakum_service.states import NodeState

_HOUR_S = 3600.0
_SETTLED_S = 600.0
"""Seconds after an hour's end from which on nothing of it changes any more."""


class Usage(NamedTuple):
    """Node-seconds of a stretch of time."""

    idle_node_s: float
    """In holes."""
    used_node_s: float
    """Of those, in which fragments trained, from their first generation on."""


class _Stretch(NamedTuple):
    """A hole, or training on a node or on slots of it; what lasts ends at the present."""

    node: str
    start_at: float
    end_at: float


def usage_since(session: Session, begin: float, now: float) -> Usage:
    """The usage from `begin` to `now`, in Unix seconds. Where `begin` is within an hour that was rolled up, a
    proportional part of the hour counts."""
    rolled_to = _rolled_to(session)
    # Whole numbers: to compare the column with others, PostgreSQL reads every hour that there is.
    first, end = math.floor(begin / _HOUR_S), math.ceil(now / _HOUR_S)
    hours = session.execute(select(UsageHour).where(UsageHour.hour >= first, UsageHour.hour < end)).scalars()
    idle_s = used_s = 0.0
    for row in hours:
        share = min(1.0, row.hour + 1 - begin / _HOUR_S)
        idle_s, used_s = idle_s + share * row.idle_node_s, used_s + share * row.used_node_s
    begin = max(begin, rolled_to)
    idle, used = (_total_s(some, begin) for some in _stretches_since(session, begin, now))
    return Usage(idle_s + idle, used_s + used)


def hourly_usage(session: Session, begin: float, end: float) -> dict[int, Usage]:
    """The usage of every whole hour that was rolled up and begins between `begin` and `end`, in Unix seconds, by
    the hour's number since 1970-01-01, UTC."""
    within = UsageHour.hour >= math.ceil(begin / _HOUR_S) - 1, UsageHour.hour < math.ceil(end / _HOUR_S)
    rows = session.execute(select(UsageHour).where(*within)).scalars()
    return {row.hour: Usage(row.idle_node_s, row.used_node_s) for row in rows}


def complete_hours(session: Session, now: float) -> list[UsageHour]:
    """New rows with the sums of every hour that is over at `now` (Unix seconds), from the last hour kept on, or
    from the beginning of what is remembered. Writes nothing."""
    first = _rolled_to(session) or _earliest(session)
    if first is None:
        return []
    begin, end = math.floor(first / _HOUR_S), math.floor((now - _SETTLED_S) / _HOUR_S)
    if begin >= end:
        return []
    idle, used = (_by_hour(some, begin, end) for some in _stretches_since(session, begin * _HOUR_S, now))
    return [
        UsageHour(hour=hour, idle_node_s=idle[hour - begin], used_node_s=used[hour - begin])
        for hour in range(begin, end)
    ]


def _rolled_to(session: Session) -> float:
    """When the last hour that was rolled up ended, in Unix seconds; 0 without one."""
    newest = session.scalar(select(func.max(UsageHour.hour)))
    return 0.0 if newest is None else (newest + 1) * _HOUR_S


def _earliest(session: Session) -> float | None:
    return session.scalar(select(func.min(NodeInterval.start_at)))


def _stretches_since(session: Session, begin: float, now: float) -> tuple[list[_Stretch], Iterable[_Stretch]]:
    """(Holes, training): the times up to `now` in which nodes were idle, and the parts of these in which a
    fragment trained; what had ended before `begin` is left out."""
    is_hole, trained = NodeInterval.state == NodeState.HOLE, Fragment.training_at.is_not(None)
    hole_columns = NodeInterval.node, NodeInterval.start_at, NodeInterval.end_at
    training_columns = Fragment.node, Fragment.training_at, Fragment.ended_at
    holes = list(_read(session, hole_columns, begin, now, is_hole))
    return holes, _trained_in(holes, _read(session, training_columns, begin, now, trained))


def _read(
    session: Session,
    columns: tuple[InstrumentedAttribute[str], InstrumentedAttribute[Any], InstrumentedAttribute[float | None]],
    begin: float,
    now: float,
    condition: ColumnElement[bool],
) -> Iterator[_Stretch]:
    ended_at = columns[-1]
    # Two queries: for an OR of both, SQLite uses no index that has all columns.
    for present in (ended_at.is_(None), ended_at >= begin):
        for node, start, end in session.execute(select(*columns).where(condition, present)):
            if start < now:  # what another process has written since is of the next time
                yield _Stretch(node, start, now if end is None else min(end, now))


def _trained_in(holes: Iterable[_Stretch], training: Iterable[_Stretch]) -> Iterator[_Stretch]:
    """For each slot, the parts of the training during which its node was idle."""
    by_node: dict[str, list[_Stretch]] = {}
    for hole in sorted(holes, key=_end):
        by_node.setdefault(hole.node, []).append(hole)
    for place, start, end in training:
        for slot in slots_in(place):
            there = by_node.get(slot, [])
            first, last = bisect_right(there, start, key=_end), bisect_left(there, end, key=_start)
            for _, opens, closes in there[first:last]:  # holes of a node follow each other
                yield _Stretch(slot, max(start, opens), min(end, closes))


def _start(stretch: _Stretch) -> float:
    return stretch.start_at


def _end(stretch: _Stretch) -> float:
    return stretch.end_at


def _total_s(stretches: Iterable[_Stretch], begin: float) -> float:
    """The total length in seconds of the stretches, without what of them lies before `begin` (Unix seconds)."""
    return sum(max(0.0, end - max(start, begin)) for _, start, end in stretches)


def _by_hour(stretches: Iterable[_Stretch], begin: int, end: int) -> list[float]:
    """Seconds of the stretches in each of the hours from number `begin` to before number `end`."""
    sums = [0.0] * (end - begin)
    for _, start, stop in stretches:
        first = max(begin, math.floor(start / _HOUR_S))
        last = min(end - 1, math.floor(stop / _HOUR_S))
        for hour in range(first, last + 1):
            sums[hour - begin] += max(0.0, min(stop, (hour + 1) * _HOUR_S) - max(start, hour * _HOUR_S))
    return sums
