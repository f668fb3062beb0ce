"""Forecast: which nodes a plan may grant, how long their holes are expected to last, and which trainer holds
each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import Node
from oakum_service.documents.slots import is_part, node_of, slots_in
from oakum_service.orders.given_forecast import given
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState
from oakum_solver.forecast import HoleForecast, IdleNode
from oakum_worker.protocol import Held, Phase

_PAST_HOLES = 500
"""How many of the newest holes count: a cluster's use changes."""
_LEAST_REST_S = 1.0
"""Seconds for which a node counts as idle on although a job is announced to start there now. The announcement may
be wrong, and a trainer that stays until its node is really taken loses nothing."""
_CLEARED_WITHIN_S = 30.0
"""A node that our job has left for so long and that is not idle yet is not expected to be so soon."""
_LEAVING = {Phase.LEAVING, Phase.LEFT, Phase.FINISHED, Phase.FAILED}


def holders(session: Session) -> dict[str, str]:
    """Node -> id of the trainer that holds it: its fragment there is live, not released and not leaving."""
    return {slot: holder.fragment.trainer_id for holder in _holding(session) for slot in holder.fragment.slots}


def held_together(session: Session) -> list[tuple[str, ...]]:
    """The slots that a fragment holds together, for each that has several."""
    return [holder.fragment.slots for holder in _holding(session) if holder.fragment.num_slots > 1]


@dataclass(frozen=True)
class _Holder:
    """A fragment that holds a node: live, not released, not leaving."""

    fragment: Fragment
    held: Held | None
    """Where the node has the trainer's state; None where the agent has not reported that."""
    is_left_out: bool
    """Whether others of the trainer's fragments train, and this one does not: there are more than it can use."""

    @property
    def readiness(self) -> int:
        """How far the fragment is from training: 0 if it has the state, 1 if it is ready, 2 if it warms up."""
        has_state = self.held != Held.NOWHERE if self.held is not None else self.fragment.training_at is not None
        if has_state and not self.is_left_out:
            return 0
        return 1 if self.fragment.ready_at is not None else 2


def _holding(session: Session) -> list[_Holder]:
    rows = session.execute(
        select(Fragment, Report, Trainer.members)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .outerjoin(Report, Report.fragment_id == Fragment.id)
        .where(Fragment.is_live, Fragment.released.is_(False))
    )
    return [
        _Holder(
            fragment,
            None if report is None else report.body.holds,
            is_left_out=bool(members) and fragment.id not in members,
        )
        for fragment, report, members in rows
        if report is None or report.body.phase not in _LEAVING
    ]


@dataclass(frozen=True)
class PastHoles:
    """The lengths in seconds from which a forecast is learnt."""

    seen_s: tuple[float, ...]
    """Of the newest holes that the service has seen end."""
    given_s: tuple[float, ...]
    """Of those that an administrator has told, spread over all of these; the fewer, the more are seen."""

    def forecast(self) -> HoleForecast:
        """The forecast that follows."""
        forecast = HoleForecast()
        forecast.learn(np.array(self.seen_s + self.given_s))
        return forecast


def past_holes(session: Session) -> PastHoles:
    """The holes that count now: what an administrator has told fills up what the service has not seen yet."""
    seen_s = _seen_holes(session)
    log = given(session)
    return PastHoles(seen_s, () if log is None else _spread(log.lengths_s, _PAST_HOLES - len(seen_s)))


def _spread(lengths_s: Sequence[float], most: int) -> tuple[float, ...]:
    """At most so many of the rising lengths, spread evenly over them."""
    number = min(most, len(lengths_s))
    return tuple(lengths_s[(2 * index + 1) * len(lengths_s) // (2 * number)] for index in range(number))


def mean_rest_s(forecast: HoleForecast, nodes: Sequence[IdleNode]) -> float | None:
    """For how many seconds these nodes are expected to stay idle, on average; None where too few holes have been
    seen to tell, or there is no node."""
    if not nodes or not forecast.learned:
        return None
    return sum(node.rest_s for node in nodes) / len(nodes)


def idle_nodes(
    session: Session,
    snapshot: Snapshot,
    forecast: HoleForecast,
    learned: bool,
    now: float,
    preference: Sequence[str] = (),
    label: Callable[[Node], str] = lambda _: "",
) -> list[IdleNode]:
    """Every idle node with the forecast of how long its hole goes on, in order of preference; and those that the
    scheduler still clears after a fragment that has just left. Without these, whatever a plan moves from one
    trainer to another would be missing in the next one, which would take more.

    The horizon of a node with an announced foreground job follows from the announcement. Otherwise it is learnt
    from past holes if `learned`, else infinite. With `learned`, nodes expected to leave together share a cohort.
    Nodes whose fragments train come before ones that wait for others or warm up, and parts of nodes of which
    another part is in use before those of idle nodes; among equals, the order of `preference` decides. `label`
    gives a node's label for `IdleNode.access`. Slots of a fragment of which another slot is taken are left out:
    the fragment leaves them all.
    """
    started = _hole_starts(session)
    held = _holding(session)
    holding = {slot: holder for holder in held for slot in holder.fragment.slots}
    cleared = {node.name for node in snapshot.nodes if node.clearing}
    if cleared:
        cleared &= _just_left(session, now)
    holes = [node for node in snapshot.nodes if node.state is NodeState.HOLE or node.name in cleared]
    given_back = {slot for holder in held if _is_taken(holder, snapshot) for slot in holder.fragment.slots}
    holes = [node for node in holes if node.name not in given_back]
    ages_s = [max(0.0, now - started.get(node.name, now)) for node in holes]
    nodes = []
    for node, forecast_s in zip(holes, forecast.remaining_s(np.array(ages_s)).tolist(), strict=True):
        rest_s = forecast_s if node.announced_at is None else max(_LEAST_REST_S, node.announced_at - now)
        horizon_s = rest_s if learned or node.announced_at is not None else math.inf
        cohort = _cohort(node, started.get(node.name)) if learned else None
        owner = holding[node.name].fragment.trainer_id if node.name in holding else None
        host = node_of(node.name) if is_part(node.name) else None
        nodes.append(IdleNode(node.name, horizon_s, owner, node.node_type, cohort, rest_s, label(node), host))
    rank = {name: position for position, name in enumerate(preference)}
    readiness = {name: holder.readiness for name, holder in holding.items()}
    opened = {node_of(node.name) for node in snapshot.nodes if node.state is not NodeState.HOLE}
    opened |= {node_of(name) for name in holding}

    def order(node: IdleNode) -> tuple[int, bool, bool, int]:
        # Parts of nodes that are wholly idle come last: foreground jobs may want them whole.
        opens_another = is_part(node.node) and node_of(node.node) not in opened
        is_cleared = node.node in cleared
        return readiness.get(node.node, 0), is_cleared, opens_another, rank.get(node.node, len(rank))

    return sorted(nodes, key=order)


def _just_left(session: Session, now: float) -> set[str]:
    """The slots whose fragments have ended lately."""
    lately = select(Fragment.node).where(Fragment.ended_at >= now - _CLEARED_WITHIN_S)
    return {slot for name in session.scalars(lately) for slot in slots_in(name)}


def _is_taken(holder: _Holder, snapshot: Snapshot) -> bool:
    node = snapshot.node(holder.fragment.node)
    return node is None or node.state is not NodeState.HOLE


def _cohort(node: Node, started: float | None) -> str:
    """A label that nodes share if they are expected to leave together: their holes began in the same snapshot,
    so one foreground job had them, or the same start is announced for them."""
    return f"idle since {started}" if node.announced_at is None else f"wanted at {node.announced_at}"


def _seen_holes(session: Session) -> tuple[float, ...]:
    """Lengths in seconds of the newest holes that have ended."""
    rows = session.execute(
        select(NodeInterval.start_at, NodeInterval.end_at)
        .where(NodeInterval.state == NodeState.HOLE, NodeInterval.end_at.is_not(None))
        .order_by(NodeInterval.id.desc())
        .limit(_PAST_HOLES)
    )
    return tuple(float(end_at or 0.0) - start_at for start_at, end_at in rows)


def _hole_starts(session: Session) -> dict[str, float]:
    rows = session.execute(
        select(NodeInterval.node, NodeInterval.start_at).where(
            NodeInterval.state == NodeState.HOLE, NodeInterval.end_at.is_(None)
        )
    )
    return dict(rows.all())
