"""Where the idle node-time went: what of it trained, and the rest by cause.

What is lost is added to its hour when it happens, so that a week is the sum of 169 rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.control.usage import Usage, usage_since
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.usage import LostHour
from oakum_service.documents.slots import slots_in
from oakum_service.states import NodeState

_HOUR_S = 3600.0
LONGEST_LATE_S = 120.0
"""A node that is launched on within so many seconds of becoming free was wanted at once, and found late; one that
is free for longer, nobody had wanted."""
USES = ("trained", "stalled", "start_up", "late", "unwanted")
"""What becomes of idle node-time, as the fields of `IdleTime` name it."""
_AT_ONCE = 500


class IdleTime(NamedTuple):
    """Node-seconds of the holes of some time. The parts add up to all."""

    since: float
    """When the time began, in Unix seconds."""
    idle_node_s: float
    trained_node_s: float
    stalled_node_s: float
    start_up_node_s: float
    late_node_s: float
    unwanted_node_s: float


def lose(session: Session, at: float, **amounts: float) -> None:
    """Add amounts, by the names of `LostHour`'s columns, to the hour of `at`, in Unix seconds."""
    hour = math.floor(at / _HOUR_S)
    row = session.get(LostHour, hour)
    if row is None:
        row = LostHour(hour=hour, late_node_s=0.0, start_up_node_s=0.0, stalled_node_s=0.0)
        session.add(row)
        session.flush()  # another loss of this transaction finds it
    for name, amount in amounts.items():
        setattr(row, name, getattr(row, name) + max(0.0, amount))


def note_launches(session: Session, nodes: Sequence[str], now: float) -> None:
    """Add the time for which these nodes or slots, on which fragments are launched at `now`, have been free in
    vain."""
    if not nodes:
        return
    left_at: dict[str, float] = {}
    lately = select(Fragment.node, Fragment.ended_at).where(Fragment.ended_at >= now - LONGEST_LATE_S)
    for place, ended_at in session.execute(lately.order_by(Fragment.ended_at)):
        left_at |= dict.fromkeys(slots_in(place), ended_at or now)
    late_s = 0.0
    is_hole = (NodeInterval.state == NodeState.HOLE) & NodeInterval.end_at.is_(None)
    for begin in range(0, len(nodes), _AT_ONCE):
        some = nodes[begin : begin + _AT_ONCE]
        holes = select(NodeInterval.node, NodeInterval.start_at).where(NodeInterval.node.in_(some), is_hole)
        for node, start_at in session.execute(holes):
            free_s = now - max(start_at, left_at.get(node, start_at))
            late_s += free_s if 0.0 < free_s <= LONGEST_LATE_S else 0.0
    if late_s:
        lose(session, now, late_node_s=late_s)


def idle_time(session: Session, usage: Usage, begin: float, now: float) -> IdleTime:
    """Where the idle node-time went whose `usage` from `begin` to `now` (Unix seconds) is given. It begins later
    where losses have not been counted for so long."""
    first_hour = session.scalar(select(func.min(LostHour.hour)))
    first = select(func.min(NodeInterval.id)).scalar_subquery()
    begun_at = session.scalar(select(NodeInterval.start_at).where(NodeInterval.id == first)) or 0.0
    counted_at = 0.0 if first_hour is None else max(begun_at, first_hour * _HOUR_S)
    since = begin if counted_at > now else max(begin, counted_at)
    idle_s, used_s = usage_since(session, since, now) if since > begin else usage
    late_s, start_up_s, stalled_s = _lost(session, since, now, begun_at)
    warming = select(func.sum(Fragment.num_slots * (now - Fragment.launched_at))).where(
        Fragment.is_live, Fragment.training_at.is_(None)
    )
    # Parts of what there is: losses are counted as they happen, some of them a moment after the hole.
    used_s = _within(used_s, idle_s)
    stalled_s = _within(stalled_s, used_s)
    start_up_s = _within(start_up_s + (session.scalar(warming) or 0.0), idle_s - used_s)
    late_s = _within(late_s, idle_s - used_s - start_up_s)
    unwanted_s = idle_s - used_s - start_up_s - late_s
    return IdleTime(since, idle_s, used_s - stalled_s, stalled_s, start_up_s, late_s, unwanted_s)


def _lost(session: Session, since: float, now: float, begun_at: float) -> tuple[float, float, float]:
    """Node-seconds between `since` and `now` that were (found late, spent on starting up, stalled). They are kept
    as sums of whole hours; of the first hour a share counts, as large as the part of it after `since`, among what
    the service has seen of that hour."""
    late_s = start_up_s = stalled_s = 0.0
    columns = (LostHour.hour, LostHour.late_node_s, LostHour.start_up_node_s, LostHour.stalled_node_s)
    hours = session.execute(select(*columns).where(LostHour.hour >= math.floor(since / _HOUR_S)))
    for hour, late, start_up, stalled in hours:
        seen_from, seen_to = max(hour * _HOUR_S, begun_at), min((hour + 1) * _HOUR_S, now)
        share = min(1.0, (seen_to - since) / (seen_to - seen_from)) if seen_from < seen_to else 1.0
        late_s, start_up_s = late_s + share * late, start_up_s + share * start_up
        stalled_s += share * stalled
    return late_s, start_up_s, stalled_s


def _within(part: float, whole: float) -> float:
    return min(max(0.0, part), whole)
