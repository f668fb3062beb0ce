"""Renewal: a fragment that is about to reach its time limit is replaced before, so that its trainer trains on.

A free node takes the ending one's place in the problem: the planner sees the trainer on it already and the ending
one not at all, so that the plan gives the trainer as many nodes as before, and others what is left. The successor
is launched and warms up; the old fragment is told to leave when all granted nodes of its trainer are ready, which
hands the state on from member to member. Where no node is free, the trainer keeps the ending one: it trains there
until the limit, and is launched there again. The successor of a fragment of several slots has as many of one node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.durations import START_UP, Measured, expected_s
from oakum_service.documents.grant import Grant
from oakum_service.documents.slots import bundle_name, node_of, slots_in
from oakum_service.schedulers.port import Snapshot
from oakum_solver.forecast import IdleNode
from oakum_solver.hosts import HostKey
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
    """Its node or slot, or its several slots together."""
    left_s: float
    """Seconds until then."""

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of its slots; of a whole node, the node's."""
        return slots_in(self.node)


@dataclass(frozen=True)
class Successors:
    """Which free nodes may take the place of which ending ones."""

    may_have: Callable[[str, IdleNode], bool]
    """Whether a trainer may have a node."""
    sizes: Mapping[HostKey, int] = field(default_factory=dict)
    """How many slots of each type each node has, idle or not."""
    whole: Collection[str] = ()
    """Trainers whose fragments have all slots of a node."""

    def find(self, each: Ending, of_type: str, free: Sequence[IdleNode]) -> list[IdleNode]:
        """As many of the free nodes of this type as the ending fragment has, of one node where it has several
        slots, where least room is left over; empty where there are none."""
        number = len(each.slots)
        able = [
            on_host
            for key, on_host in _by_host(node for node in free if self._will_do(node, each, of_type))
            if len(on_host) >= number and (each.trainer not in self.whole or self.sizes.get(key) == number)
        ]
        best = min(able, key=lambda on_host: len(on_host) if number > 1 else 0, default=[])
        return best[:number]

    def _will_do(self, node: IdleNode, each: Ending, of_type: str) -> bool:
        return node.node_type == of_type and self.may_have(each.trainer, node) and node.rest_s > each.left_s


def _by_host(free: Iterable[IdleNode]) -> Iterator[tuple[HostKey, list[IdleNode]]]:
    on_host: dict[HostKey, list[IdleNode]] = {}
    for node in free:
        on_host.setdefault((node_of(node.node), node.node_type), []).append(node)
    yield from on_host.items()


def endings(session: Session, snapshot: Snapshot, now: float) -> dict[str, Ending]:
    """Node -> the fragment there that has to be replaced now or has been, the one with the least time first.

    None is replaced before half of its time is over: where limits are short, its successor may have no more. Nor
    is one that was preempted, of whose time Slurm leaves the grace.
    """
    left_s = {
        job.fragment: job.leaves_at - now
        for job in snapshot.own_jobs
        if job.leaves_at is not None and job.leaves_at - now <= _LONGEST_LEAD_S
        if job.fragment not in snapshot.preempted
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
    successors: Successors,
) -> tuple[list[IdleNode], list[tuple[str, ...]]]:
    """The nodes to plan with: ending ones are left out if another node takes their place, which then counts as
    their trainer's; those that nothing replaces come last. With them, the slots that each successor is to have
    together.

    `granted`: trainer -> nodes that the plan in force gives it, by which one knows whose place is taken already.
    """
    held: dict[str, set[str]] = {}
    for node in nodes:
        if node.owner is not None:
            held.setdefault(node.owner, set()).add(node.node)
    due = [each for each in ending.values() if held.get(each.trainer, set()).issuperset(each.slots)]
    old = {slot for each in due for slot in each.slots}
    type_of = {node.node: node.node_type for node in nodes}
    replaced = _replaced(due, held, granted)
    free = [node for node in nodes if node.owner is None]
    begun: list[IdleNode] = []
    together: list[tuple[str, ...]] = []
    lasting = {trainer: len(of_it - old) for trainer, of_it in held.items()}
    for each in sorted(due, key=lambda each: lasting[each.trainer] > 0):  # last replicas first
        found = [] if each.node in replaced else successors.find(each, type_of[each.slots[0]], free)
        if found:
            begun += (replace(node, owner=each.trainer) for node in found)
            free = [node for node in free if node not in found]
            replaced.add(each.node)
            together += [tuple(node.node for node in found)] if len(found) > 1 else []
    gone = {slot for name in replaced for slot in slots_in(name)} | {node.node for node in begun}
    rest = [node for node in nodes if node.node not in gone]
    return [*(n for n in rest if n.node not in old), *begun, *(n for n in rest if n.node in old)], together


def _replaced(
    due: Iterable[Ending], held: Mapping[str, Collection[str]], granted: Mapping[str, Collection[str]]
) -> set[str]:
    """The ending nodes whose place another one has taken: the plan in force no longer grants them. Of a trainer's,
    as many count as not replaced as it lacks of its granted nodes: successors have come to nothing."""
    replaced: set[str] = set()
    moved: dict[str, list[Ending]] = {}
    for each in due:
        if not _is_granted(each, granted.get(each.trainer, ())):
            moved.setdefault(each.trainer, []).append(each)
    for trainer, places in moved.items():
        lacking = len(set(granted.get(trainer, ())) - set(held[trainer]))
        while places and lacking > 0:
            lacking -= len(places.pop().slots)
        replaced |= {each.node for each in places}
    return replaced


def _is_granted(each: Ending, nodes: Iterable[str]) -> bool:
    return set(each.slots).issubset(nodes)


def renewals(
    before: Mapping[str, Grant], now: Mapping[str, Grant], ending: Mapping[str, Ending]
) -> dict[str, str]:
    """Trainer id -> what is said of its ending fragments that others replace, by the plan before and by the new
    one; only trainers of which one is being replaced."""
    said = {}
    for trainer, grant in now.items():
        last = before.get(trainer)
        own = [e for e in ending.values() if e.trainer == trainer and not _is_granted(e, grant.nodes)]
        if last is None or not own:
            continue
        gone = [each for each in own if _is_granted(each, last.nodes)]
        words = _handovers(gone, [node for node in grant.nodes if node not in last.nodes])
        if words or last.renewal:
            said[trainer] = "; ".join(words) or last.renewal
    return said


def _handovers(gone: Iterable[Ending], new: Iterable[str]) -> list[str]:
    """What is said of ending fragments and the `new` nodes that take over from them."""
    on_host: dict[str, list[str]] = {}
    for slot in new:
        on_host.setdefault(node_of(slot), []).append(slot)
    words = []
    for each in gone:
        number = len(each.slots)
        slots = next((slots for slots in on_host.values() if len(slots) >= number), None)
        if slots is not None:
            words.append(_handover(each, bundle_name(slots[:number])))
            del slots[:number]
    return words


def _handover(each: Ending, successor: str) -> str:
    return f"{each.node} reaches its time limit in {duration(max(0.0, each.left_s))}, and {successor} takes over"
