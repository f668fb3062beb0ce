"""Keeps the metrics of nodes, trainers and fragments up to date, turn by turn."""

from __future__ import annotations

import math
from collections import Counter

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service import instruments
from oakum_service.control import launch_records
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import LIVE_STATES, NodeState


class ClusterMeter:
    """Sets the gauges of the present state, and adds up node-seconds from one turn to the next."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._holes = self._warming = self._training = 0

    def begin(self) -> None:
        """Forget the state before: this process has just become the controller, and another one has counted."""
        self._at = None

    def read(self, session: Session, snapshot: Snapshot, now: float) -> None:
        """Take in the state at `now`, in Unix seconds: until the next call, nodes and fragments count as being
        what they are now."""
        self._add_up(now)
        states = Counter(node.state for node in snapshot.nodes)
        trains = Fragment.training_at.is_not(None)
        live = select(trains, func.count(), func.sum(Fragment.num_slots)).where(Fragment.is_live).group_by(trains)
        fragments, slots = Counter[bool](), Counter[bool]()
        for is_training, num_fragments, num_slots in session.execute(live):
            fragments[bool(is_training)], slots[bool(is_training)] = num_fragments, num_slots
        self._holes, self._warming, self._training = states[NodeState.HOLE], slots[False], slots[True]
        by_state = select(Trainer.state, func.count()).where(Trainer.state.in_(LIVE_STATES))
        trainers = dict(session.execute(by_state.group_by(Trainer.state)).all())
        for node_state in NodeState:
            instruments.NODES.labels(node_state).set(states[node_state])
        for state in LIVE_STATES:
            instruments.TRAINERS.labels(state).set(trainers.get(state, 0))
        instruments.FRAGMENTS.labels("warming").set(fragments[False])
        instruments.FRAGMENTS.labels("training").set(fragments[True])
        instruments.CLOSED.set(bool(snapshot.closed))
        instruments.NODES_AVOIDED.set(len(launch_records.avoided(session, now)))
        share = min(1.0, self._training / self._holes) if self._holes else math.nan
        instruments.EFFICIENCY.set(share)

    def _add_up(self, now: float) -> None:
        seconds = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        instruments.HOLE_NODE_S.inc(seconds * self._holes)
        instruments.HARVESTED_NODE_S.inc(seconds * self._training)
        instruments.LOST_NODE_S.labels("warm_up").inc(seconds * self._warming)
