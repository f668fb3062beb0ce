"""Renewal: a fragment that is about to reach its time limit is replaced before, so that its trainer trains on.

A free node takes the ending one's place in the problem: the planner sees the trainer on it already and the ending
one not at all, so that the plan gives the trainer as many nodes as before, and others what is left. The successor
is launched and warms up; the old fragment is told to leave when all granted nodes of its trainer are ready, which
hands the state on from member to member. Where no node is free, the trainer keeps the ending one: it trains there
until the limit, and is launched there again. So does one of several slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.durations import START_UP, Measured, expected_s
from oakum_service.documents.grant import Grant
from oakum_service.schedulers.port import Snapshot
from oakum_solver.forecast import IdleNode
from oakum_solver.wording import duration

_STARTS = 2
"""A fragment is replaced so many of its trainer's start-ups before its limit, and `_MARGIN_S` more."""
_MARGIN_S = 60.0
_UNKNOWN_START_S = 60.0
_LONGEST_LEAD_S = 1800.0


@dataclass(frozen=True)
class Ending:
    """A fragment that reaches its time limit soon."""

    trainer: str
    node: str
    left_s: float
    """Seconds until then."""


def endings(session: Session, snapshot: Snapshot, now: float) -> dict[str, Ending]:
    """Node -> the fragment there that has to be replaced now or has been, the one with the least time first.

    None is replaced before half of its time is over: where limits are short, its successor may have no more.
    """
    left_s = {
        job.fragment: job.leaves_at - now
        for job in snapshot.own_jobs
        if job.leaves_at is not None and job.leaves_at - now <= _LONGEST_LEAD_S
    }
    if not left_s:
        return {}
    rows = session.execute(
        select(Fragment.id, Fragment.node, Fragment.launched_at, Trainer.id, Trainer.durations)
        .join(Trainer, Trainer.id == Fragment.trainer_id)
        .where(Fragment.is_live, Fragment.released.is_(False))
    )
    soon = [
        Ending(trainer, node, left_s[fragment])
        for fragment, node, launched_at, trainer, durations in rows
        if fragment in left_s and left_s[fragment] <= min(_lead_s(durations), now - launched_at)
    ]
    return {each.node: each for each in sorted(soon, key=lambda each: (each.left_s, each.node))}


def _lead_s(durations: Measured) -> float:
    return min(_LONGEST_LEAD_S, _MARGIN_S + _STARTS * expected_s(durations, START_UP, _UNKNOWN_START_S))


def with_successors(
    nodes: Sequence[IdleNode],
    ending: Mapping[str, Ending],
    granted: Mapping[str, Collection[str]],
    may_have: Callable[[str, IdleNode], bool],
) -> list[IdleNode]:
    """The nodes to plan with: ending ones are left out if another node takes their place, which then counts as
    their trainer's; those that nothing replaces come last.

    `granted`: trainer -> nodes that the plan in force gives it, by which one knows whose place is taken already;
    `may_have(trainer, node)`: whether a trainer may have a node.
    """
    held: dict[str, set[str]] = {}
    for node in nodes:
        if node.owner is not None:
            held.setdefault(node.owner, set()).add(node.node)
    due = [each for node, each in ending.items() if node in held.get(each.trainer, ())]
    replaced = _replaced(due, held, granted)
    old = {node.node: node for node in nodes if node.node in {each.node for each in due}}
    free = [node for node in nodes if node.owner is None]
    successors = []
    lasting = {trainer: len(of_it - old.keys()) for trainer, of_it in held.items()}
    for each in sorted(due, key=lambda each: lasting[each.trainer] > 0):  # last replicas first
        if each.node in replaced:
            continue
        for node in free:
            alike = node.node_type == old[each.node].node_type and may_have(each.trainer, node)
            if alike and node.rest_s > each.left_s:
                successors.append(replace(node, owner=each.trainer))
                free.remove(node)
                replaced.add(each.node)
                break
    gone = replaced | {node.node for node in successors}
    rest = [node for node in nodes if node.node not in gone]
    return [*(node for node in rest if node.node not in old), *successors, *(n for n in rest if n.node in old)]


def _replaced(
    due: Iterable[Ending], held: Mapping[str, Collection[str]], granted: Mapping[str, Collection[str]]
) -> set[str]:
    """The ending nodes whose place another one has taken: the plan in force no longer grants them. Of a trainer's,
    as many count as not replaced as it lacks of its granted nodes: successors have come to nothing."""
    replaced: set[str] = set()
    moved: dict[str, list[str]] = {}
    for each in due:
        if each.node not in granted.get(each.trainer, ()):
            moved.setdefault(each.trainer, []).append(each.node)
    for trainer, places in moved.items():
        lacking = len(set(granted.get(trainer, ())) - set(held[trainer]))
        replaced |= set(places[: max(0, len(places) - lacking)])
    return replaced


def renewals(
    before: Mapping[str, Grant], now: Mapping[str, Grant], ending: Mapping[str, Ending]
) -> dict[str, str]:
    """Trainer id -> what is said of its ending fragments that others replace, by the plan before and by the new
    one; only trainers of which one is being replaced."""
    said = {}
    for trainer, grant in now.items():
        last = before.get(trainer)
        own = [each for each in ending.values() if each.trainer == trainer and each.node not in grant.nodes]
        if last is None or not own:
            continue
        gone = [each for each in own if each.node in last.nodes]
        new = [node for node in grant.nodes if node not in last.nodes]
        words = [_handover(each, successor) for each, successor in zip(gone, new, strict=False)]
        if words or last.renewal:
            said[trainer] = "; ".join(words) or last.renewal
    return said


def _handover(each: Ending, successor: str) -> str:
    return f"{each.node} reaches its time limit in {duration(max(0.0, each.left_s))}, and {successor} takes over"
