"""The bars of a picture of some nodes over time: what each node did, and the fragments on it.

At 5,000 nodes a day has 200,000 stretches, so a picture asks for the nodes in view only, and stretches that would
be thinner than a pixel are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.announcement import Announcement
from oakum_service.documents.slots import JOINT, is_part, node_of, slots_in
from oakum_service.states import NodeState
from oakum_solver.logs.node_lists import unfold

MOST_ENDED = 20_000
"""Ended stretches, and as many ended fragments, of one picture: each takes 10 microseconds."""
MOST_ANNOUNCED = 20
"""Announcements of one node in one picture."""
_PLACE = attrgetter("node", "start_at")


class Window(NamedTuple):
    """A stretch of time, in Unix seconds."""

    from_at: float
    to_at: float


# Tens of thousands of both live for one answer: collecting garbage among them would take longer than making them.
class Stretch(msgspec.Struct, frozen=True, gc=False):
    """What a node did for a time, or several short stretches of it merged into one."""

    node: str
    start_at: float
    end_at: float | None
    """None: it lasts."""
    state: str
    """Of merged stretches, the state that took most of the time."""
    job: str = ""
    """The foreground job; empty for merged stretches."""
    name: str = ""
    count: int = 1
    """How many stretches are merged in it."""


class FragmentBar(msgspec.Struct, frozen=True, gc=False):
    """The time of a fragment on its node, or of several short ones of the trainer."""

    node: str
    start_at: float
    training_at: float | None
    """When it first joined a generation; before that it warmed up."""
    end_at: float | None
    trainer: str
    """The trainer's name."""
    cause: str = ""
    """Why it ended."""
    count: int = 1


def complete_from(session: Session, nodes: Sequence[str], window: Window, changed_after: float | None) -> float:
    """The begin, in Unix seconds, of the part of the window that can be shown completely: since then at most
    `MOST_ENDED` stretches and as many fragments have ended on the nodes. The window's begin where that is all."""
    since = max(window.from_at, changed_after or 0.0)
    for node, begun, ended in (
        (NodeInterval.node, NodeInterval.start_at, NodeInterval.end_at),
        (Fragment.node, Fragment.launched_at, Fragment.ended_at),
    ):
        within = select(ended).where(node.in_(nodes), ended >= since, begun <= window.to_at)
        over = session.scalar(within.order_by(ended.desc()).offset(MOST_ENDED).limit(1))
        since = since if over is None else math.nextafter(over, math.inf)
    return max(window.from_at, since) if since > (changed_after or 0.0) else window.from_at


def stretches(
    session: Session, nodes: Sequence[str], window: Window, changed_after: float | None
) -> list[Stretch]:
    """The nodes' stretches in the window, each node's in the order of time; with `changed_after` (Unix seconds),
    only those that began or ended since then."""
    begun, ended = NodeInterval.start_at, NodeInterval.end_at
    columns = (NodeInterval.node, begun, ended, NodeInterval.state, NodeInterval.job, NodeInterval.job_name)
    within = NodeInterval.node.in_(nodes), begun <= window.to_at
    rows = [
        row
        for present in _present(ended, window, changed_after, begun)
        for row in session.execute(select(*columns).where(*within, present))
    ]
    unsorted = [
        Stretch(node, start, end, state, job or "", name or "") for node, start, end, state, job, name in rows
    ]
    return sorted(unsorted, key=_PLACE)


def fragment_bars(
    session: Session, nodes: Sequence[str], window: Window, changed_after: float | None
) -> list[FragmentBar]:
    """The fragments on the nodes in the window, each node's in the order of time; with `changed_after` (Unix
    seconds), only those that were launched, joined or ended since then."""
    begun, joined, ended = Fragment.launched_at, Fragment.training_at, Fragment.ended_at
    query = (
        select(Fragment.node, begun, joined, ended, Trainer.name, Fragment.cause)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .where(begun <= window.to_at)
    )
    present = _present(ended, window, changed_after, begun, joined)
    bars = [
        FragmentBar(slot, start, training, end, trainer, cause)
        for which in _with(nodes)
        for condition in present
        for node, start, training, end, trainer, cause in session.execute(query.where(which, condition))
        for slot in slots_in(node)
    ]
    shown = set(nodes)
    return sorted((bar for bar in bars if bar.node in shown), key=_PLACE)


def _with(nodes: Sequence[str]) -> Iterator[ColumnElement[bool]]:
    """Conditions of the fragments on the nodes: of those that have one of them, and, if there are parts of nodes,
    of those that have several parts together, wherever these are."""
    yield Fragment.node.in_(nodes)
    if any(is_part(node) for node in nodes):
        yield Fragment.node.contains(JOINT)


def _present(
    ended: InstrumentedAttribute[float | None],
    window: Window,
    changed_after: float | None,
    *begun: InstrumentedAttribute[Any],
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Conditions of what lasts, and of what ended in or after the window. They are of two queries: for an OR of
    both, SQLite reads the whole table."""
    if changed_after is None:
        return ended.is_(None), ended >= window.from_at
    recently = or_(*(time >= changed_after for time in begun))
    return ended.is_(None) & recently, ended >= max(changed_after, window.from_at)


class AnnouncedBar(NamedTuple):
    """What the scheduler expects on one node."""

    node: str
    what: Announcement


def announced_bars(
    announced: Iterable[Announcement], nodes: Sequence[str], now: float, to_at: float
) -> list[AnnouncedBar]:
    """What is announced for the nodes, or for the nodes that they are slots of, is not over at `now` and begins
    before `to_at` (Unix seconds), in the order of time: the first `MOST_ANNOUNCED` of each node."""
    slots: dict[str, list[str]] = {}
    for node in dict.fromkeys(nodes):
        for name in {node, node_of(node)}:
            slots.setdefault(name, []).append(node)
    by_node: dict[str, list[AnnouncedBar]] = {node: [] for node in nodes}
    for one in sorted(announced, key=attrgetter("start_at")):
        if one.start_at >= to_at or (one.end_at is not None and one.end_at <= now):
            continue
        for name in slots.keys() & _unfolded(one.nodes):
            for node in slots[name]:
                if len(by_node[node]) < MOST_ANNOUNCED:
                    by_node[node].append(AnnouncedBar(node, one))
    return [bar for bars in by_node.values() for bar in bars]


@lru_cache(maxsize=1024)
def _unfolded(nodes: str) -> frozenset[str]:
    return frozenset(unfold(nodes))


def merged_stretches(rows: Iterable[Stretch], resolution_s: float) -> Iterator[Stretch]:
    """The stretches, with runs of neighbours shorter than `resolution_s` merged until they are as long."""
    if resolution_s <= 0.0:
        yield from rows
        return
    run: list[Stretch] = []
    for row in rows:
        follows = bool(run) and run[-1].node == row.node and run[-1].end_at == row.start_at
        if run and (not follows or not _is_short(row, resolution_s)):
            yield _one(run)
            run = []
        run.append(row)
        if not _is_short(row, resolution_s) or (row.end_at or 0.0) - run[0].start_at >= resolution_s:
            yield _one(run)
            run = []
    if run:
        yield _one(run)


def _is_short(row: Stretch, resolution_s: float) -> bool:
    return row.end_at is not None and row.end_at - row.start_at < resolution_s


def _one(run: Sequence[Stretch]) -> Stretch:
    if len(run) == 1:
        return run[0]
    seconds = dict.fromkeys((row.state for row in run), 0.0)
    for row in run:
        seconds[row.state] += (row.end_at or row.start_at) - row.start_at
    most = max(seconds, key=lambda state: (seconds[state], state == NodeState.FOREGROUND))
    return Stretch(run[0].node, run[0].start_at, run[-1].end_at, most, count=len(run))


def merged_fragments(rows: Iterable[FragmentBar], resolution_s: float) -> Iterator[FragmentBar]:
    """The fragments, with one trainer's neighbours merged where both and the time between them are shorter than
    `resolution_s`."""
    if resolution_s <= 0.0:
        yield from rows
        return
    last: FragmentBar | None = None
    for row in rows:
        if last is not None and _merge(last, row, resolution_s):
            joined = last.training_at if last.training_at is not None else row.training_at
            last = msgspec.structs.replace(
                row, start_at=last.start_at, training_at=joined, count=last.count + row.count
            )
            continue
        if last is not None:
            yield last
        last = row
    if last is not None:
        yield last


def _merge(first: FragmentBar, second: FragmentBar, resolution_s: float) -> bool:
    if first.end_at is None or second.end_at is None:
        return False
    return (first.node, first.trainer) == (second.node, second.trainer) and (
        second.end_at - first.start_at < resolution_s
    )
