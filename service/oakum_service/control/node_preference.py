"""Learns in which order idle nodes will be taken, from the nodes that were taken before.

What it keeps in memory grows with the cluster and not with time, and each change of the nodes updates it, so a
turn costs the same however long the service has run. Only a new controller reads the past, and only its newest
holes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from oakum_service.control.observe import Observation
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.documents.node import Node
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.node_preference import NodePreference

_PAST_HOLES = 2000
"""Number of newest holes that a new controller learns from."""


class NodePreferenceTracker:
    """Learns from the scheduler's snapshots which idle nodes are taken first, and orders the idle nodes of the
    newest one."""

    def __init__(self) -> None:
        self._last: Observation | None = None
        self._learning = _OrderLearner(())

    def begin(self) -> None:
        """Forget the newest snapshot, so that the next turn learns from the database again: another controller may
        have been at work meanwhile."""
        self._last = None

    def ordered(self, session: Session, observed: Observation) -> Observation:
        """The observation with `preference`, the learnt order of idle nodes, filled in.

        The order is first brought up to date with the nodes that were taken since the previous observation.
        """
        last = self._last
        if last is not None and last.number == observed.number:
            return dataclasses.replace(observed, preference=last.preference)
        names = tuple(node.name for node in observed.snapshot.nodes)
        if last is None or names != self._learning.names:
            self._learning = _OrderLearner(names)
            self._learning.read_past(session)
        else:
            self._learning.see(observed.snapshot)
        self._last = dataclasses.replace(observed, preference=self._learning.order())
        return self._last


class _OrderLearner:
    """Learns the order in which named idle nodes are taken, and keeps since when each idle node has been idle."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._number = {name: number for number, name in enumerate(names)}
        self._order = NodePreference(len(names))
        self._since: dict[int, float] = {}

    def read_past(self, session: Session) -> None:
        """Learn from the newest holes, open ones included, as if they had been watched one by one."""
        newest = (
            select(NodeInterval.id)
            .where(NodeInterval.state == NodeState.HOLE)
            .order_by(NodeInterval.id.desc())
            .limit(_PAST_HOLES)
        )
        rows = session.execute(
            select(NodeInterval.node, NodeInterval.start_at, NodeInterval.end_at).where(
                NodeInterval.state == NodeState.HOLE,
                or_(NodeInterval.id.in_(newest.scalar_subquery()), NodeInterval.end_at.is_(None)),
            )
        )
        holes = [(self._number[node], start, end) for node, start, end in rows if node in self._number]
        numbers = np.array([number for number, _, _ in holes], dtype=np.int64)
        starts = np.array([start for _, start, _ in holes], dtype=np.float64)
        ends = np.array([np.inf if end is None else end for _, _, end in holes], dtype=np.float64)
        for at in np.unique(ends[np.isfinite(ends)]).tolist():
            idle = np.flatnonzero((starts < at) & (ends >= at))
            self._order.learn(numbers[idle], ends[idle] == at, starts[idle])
        self._since = {number: start for number, start, end in holes if end is None}

    def see(self, snapshot: Snapshot) -> None:
        """Learn from the change to this snapshot's idle nodes. One that the scheduler clears after a job of ours
        was taken by nobody."""
        now = {number for number, node in enumerate(snapshot.nodes) if self._is_idle(number, node)}
        before, since = _columns(self._since)
        self._order.learn(
            before, np.array([number not in now for number in before.tolist()], dtype=np.bool_), since
        )
        self._since = {number: self._since.get(number, snapshot.taken_at) for number in sorted(now)}

    def _is_idle(self, number: int, node: Node) -> bool:
        return node.state is NodeState.HOLE or (node.clearing and number in self._since)

    def order(self) -> tuple[str, ...]:
        """The idle nodes, the one expected to stay idle the longest first."""
        idle, since = _columns(self._since)
        return tuple(self.names[number] for number in idle[self._order.order(idle, since)].tolist())


def _columns(since: Mapping[int, float]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.array([*since], dtype=np.int64), np.array([*since.values()], dtype=np.float64)
