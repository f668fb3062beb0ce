"""How many slots of one node the fragments of a trainer with `slots_per_fragment: auto` take: one, or several that
are given back together.

A fragment of several is lost as a whole when a foreground job takes any of its slots, and can only be where so
many are idle on one node. So it is decided by

    the past   where a share p of the foreground jobs takes nodes as a whole, fragments of all S slots of a node
               lose S slots to each job that comes, and fragments of one slot at least p S: with p = 0.9 no more
               than a ninth is lost in vain, and idle nodes are mostly idle as a whole;
    the model  where it is divided over its ranks and is g times as fast on ranks that are together, it is worth
               g W beside A, of A idle slots of which W are on nodes with so many idle.

A trainer's fragments are alike, so what is decided holds while it has any; it is stored with the trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control.hosts import sizes_of
from oakum_service.db.models.cluster import NodeInterval
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.fragment_slots import FragmentSlots, Slots, SlotsWhy
from oakum_service.documents.slots import is_part, node_of
from oakum_service.orders.quotas import quota_of
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import LIVE_STATES, NodeState
from oakum_solver.bundles import possible_sizes
from oakum_solver.hosts import HostKey
from oakum_solver.problem import Host
from oakum_solver.wording import counted
from oakum_worker.spec import TrainerSpec
from oakum_worker.strategy_table import strategy_of

_WHOLE_SHARE = 0.9
"""From this share of whole nodes on, `node` loses at most a ninth more than single slots: the module's p."""
_LEAST_JOBS = 20
"""Of fewer jobs nothing is learnt. If 7 of 10 took whole nodes in truth, 18 of 20 would seldom do (1 in 28)."""
_PAST_TAKINGS = 4000
"""How many of the newest slots that foreground jobs took count: a cluster's use changes."""
_ASSUMED_GAIN = 2.0
"""How many times as fast a model that is divided over its ranks is assumed to be on ranks of one node, until its
worker has measured links within a fragment and between nodes."""
_CLEARLY = 1.2
"""So many times as much as single slots a choice has to be worth by the model."""
_MOST_SLOTS = 64


def due(session: Session, snapshot: Snapshot, settings: Settings) -> dict[str, FragmentSlots]:
    """Trainer's id -> what is decided for it now, for live trainers without fragments for which that is news."""
    site = Site(snapshot, session)
    before = _undecided(session, site)
    rows = session.scalars(select(Trainer).where(Trainer.id.in_(before))) if before else ()
    decided = {row.id: _decide(session, row, site, settings) for row in rows}
    return {id_: new for id_, new in decided.items() if _is_news(before[id_], new)}


def _undecided(session: Session, site: Site) -> dict[str, FragmentSlots | None]:
    """Id -> what was decided last, for live trainers without fragments; where all nodes are given as a whole only
    for those for which something else was decided, of which there are few."""
    begun = select(Fragment.trainer_id).where(Fragment.is_live)
    rows = select(Trainer.id, Trainer.spec, Trainer.members, Trainer.fragment_slots)
    waiting = session.execute(rows.where(Trainer.state.in_(LIVE_STATES), Trainer.id.not_in(begun)))
    is_shared = any(size > 1 for size in site.sizes.values())
    return {
        id_: decided
        for id_, spec, members, decided in waiting
        if spec.slots_per_fragment == "auto" and not members and (is_shared or decided is not None)
    }


def _is_news(before: FragmentSlots | None, new: FragmentSlots) -> bool:
    if before is None:  # which is one slot
        return new.why is not SlotsWhy.WHOLE_NODES
    return (before.slots, before.why) != (new.slots, new.why)


def store(session: Session, decided: Mapping[str, FragmentSlots]) -> None:
    """Keep with the trainers what is decided for them."""
    for row in session.scalars(select(Trainer).where(Trainer.id.in_(decided))):
        row.fragment_slots = decided[row.id]


def suppose(session: Session, snapshot: Snapshot, candidates: Iterable[Trainer], settings: Settings) -> None:
    """Decide for trainers that are in no database, as it would be if they were submitted now."""
    site = Site(snapshot, session)
    for row in candidates:
        if row.spec.slots_per_fragment == "auto":
            row.fragment_slots = _decide(session, row, site, settings)


@dataclass(frozen=True)
class JobShapes:
    """How foreground jobs took slots of nodes."""

    jobs: int = 0
    whole: int = 0
    """Those of them that had all slots of each of their nodes."""


@dataclass
class Site:
    """What is known of nodes and of the foreground jobs on them."""

    snapshot: Snapshot
    session: Session

    @cached_property
    def sizes(self) -> Counter[HostKey]:
        """How many slots of each type each node has."""
        return sizes_of(self.snapshot.nodes)

    @cached_property
    def _key_of(self) -> dict[str, HostKey]:
        return {node.name: (node_of(node.name), node.node_type) for node in self.snapshot.nodes}

    def has_parts(self, types: Collection[str]) -> bool:
        """Whether a node of these types has several slots."""
        return any(size > 1 and kind in types for (_, kind), size in self.sizes.items())

    def hosts(self, types: Collection[str], *, only_idle: bool) -> list[Host]:
        """The nodes of these types with their slots, or with those of them that foreground jobs leave idle."""
        slots: dict[HostKey, list[str]] = {}
        for node in self.snapshot.nodes:
            if node.node_type in types and (node.state is NodeState.HOLE or not only_idle):
                slots.setdefault(self._key_of[node.name], []).append(node.name)
        return [Host(tuple(names), self.sizes[key]) for key, names in slots.items()]

    @cached_property
    def _is_whole(self) -> dict[tuple[str, str], bool]:
        """(job, type of slots) -> whether it had all slots of each of its nodes, for the newest jobs."""
        rows = self.session.execute(
            select(NodeInterval.node, NodeInterval.job, NodeInterval.start_at, NodeInterval.end_at)
            .where(NodeInterval.state == NodeState.FOREGROUND, NodeInterval.job.is_not(None))
            .order_by(NodeInterval.id.desc())
            .limit(_PAST_TAKINGS)
        ).all()
        # Of what began with the last row others may be beyond the limit.
        cut_at = rows[-1].start_at if len(rows) == _PAST_TAKINGS else None
        # Slots of one job are seen to go at different moments, where some had ours on them, and a hook, which
        # tells of the node alone, makes all of it count as taken until the next reading. They come back at once.
        taken: Counter[tuple[str, HostKey, float | None]] = Counter(
            (row.job, self._key_of[row.node], row.end_at)
            for row in rows
            if is_part(row.node) and row.node in self._key_of and row.start_at != cut_at
        )
        is_whole: dict[tuple[str, str], bool] = {}
        for (job, key, _), count in taken.items():
            if self.sizes[key] > 1:
                is_whole[job, key[1]] = is_whole.get((job, key[1]), True) and count >= self.sizes[key]
        return is_whole

    def past(self, types: Collection[str]) -> JobShapes:
        """How the newest foreground jobs took slots of these types."""
        those = [whole for (_, kind), whole in self._is_whole.items() if kind in types]
        return JobShapes(len(those), sum(those))

    def types_for(self, spec: TrainerSpec) -> set[str]:
        """The types of slots that a trainer may have."""
        present = {kind for _, kind in self.sizes}
        return present & spec.curves_by_type.keys() if spec.curves_by_type else present


def _decide(session: Session, row: Trainer, site: Site, settings: Settings) -> FragmentSlots:
    spec, types = row.spec, site.types_for(row.spec)
    if not site.has_parts(types):
        return FragmentSlots(1, SlotsWhy.WHOLE_NODES, "")
    quota = None if row.user_name is None else quota_of(session, settings, row.user_name).nodes
    most = spec.max_nodes if quota is None else min(spec.max_nodes, quota)
    hosts, idle = (site.hosts(types, only_idle=only_idle) for only_idle in (False, True))
    gain = None if row.progress is None else row.progress.gain_together
    return decide(spec, most, site.past(types), hosts, idle, gain)


def decide(
    spec: TrainerSpec,
    most: int,
    past: JobShapes,
    hosts: Sequence[Host],
    idle: Sequence[Host],
    gain: float | None = None,
) -> FragmentSlots:
    """How many slots each fragment of a trainer takes that may have `most` of the slots of `hosts`, all nodes, of
    which `idle` has what is idle. `gain`: how many times as fast ranks of one fragment are by measured links."""
    by_model = _by_model(spec, most, hosts, idle, gain)
    return by_model or _by_past(spec, most, past, hosts, idle)


def _by_model(
    spec: TrainerSpec, most: int, hosts: Sequence[Host], idle: Sequence[Host], measured: float | None
) -> FragmentSlots | None:
    """What a model that is divided over its ranks is worth having; None where that is nothing."""
    slots = _divided(spec, max(host.size for host in hosts))
    if slots is None or not _fits(spec, most, slots, hosts):
        return None
    together, all_idle = _able(slots, idle), sum(len(host.nodes) for host in idle)
    gain = _ASSUMED_GAIN if measured is None else measured
    if gain * together < _CLEARLY * all_idle or not together:
        return None
    how = "assumed" if measured is None else "predicted by measured links"
    where = "with all of them idle" if slots == "node" else "with so many idle"
    return FragmentSlots(
        slots,
        SlotsWhy.MODEL,
        f"Each fragment takes {_slots_in_words(slots, hosts)}: its model is divided over its ranks, which is "
        f"{how} to go {gain:.2g} times as fast on one node, and {together} of "
        f"{counted(all_idle, 'idle slot')} are on nodes {where}.",
    )


def _divided(spec: TrainerSpec, largest: int) -> Slots | None:
    """The ranks over which one copy of the model, or of its layers, is divided, as slots of a node of at most
    `largest`; None where each rank has all of it."""
    if not strategy_of(spec).splits_state:
        return None
    tensor, pipeline = spec.parallel.tensor, spec.parallel.pipeline
    ranks: int | None = None
    if tensor is not None:
        sides = (tensor.cube and tensor.cube**3, tensor.square and tensor.square**2, tensor.line, tensor.shards)
        ranks = next((number for number in sides if number), None)
    elif pipeline is not None and pipeline.stages != "auto":
        ranks = pipeline.stages
    if ranks == 1:
        return None
    return "node" if ranks is None or ranks >= min(largest, _MOST_SLOTS) else ranks


def _by_past(
    spec: TrainerSpec, most: int, past: JobShapes, hosts: Sequence[Host], idle: Sequence[Host]
) -> FragmentSlots:
    if past.jobs < _LEAST_JOBS:
        told = f"fewer than {_LEAST_JOBS} foreground jobs have been seen to take slots here"
        return _single(SlotsWhy.FEW_JOBS, told)
    told = f"of {past.jobs} foreground jobs here {past.whole} took whole nodes"
    if past.whole < _WHOLE_SHARE * past.jobs:
        return _single(SlotsWhy.PAST, told)
    if not _fits(spec, most, "node", hosts):
        bounds = f"{spec.min_nodes} to {most}" if spec.min_nodes < most else f"{most}"
        return _single(SlotsWhy.BOUNDS, f"{told}, but the trainer's {bounds} slots make up no whole nodes")
    if idle and not _able("node", idle):
        return _single(SlotsWhy.SCATTERED, f"{told}, but no node is idle as a whole now")
    return FragmentSlots("node", SlotsWhy.PAST, f"Each fragment takes {_slots_in_words('node', hosts)}: {told}.")


def _single(why: SlotsWhy, told: str) -> FragmentSlots:
    return FragmentSlots(1, why, f"Each fragment takes one slot: {told}.")


def _fits(spec: TrainerSpec, most: int, slots: Slots, hosts: Sequence[Host]) -> bool:
    """Whether the trainer could have some number of whole fragments, were all of these nodes idle."""
    listed = spec.listed_sizes
    possible = possible_sizes("host" if slots == "node" else slots, hosts, most)
    return any(spec.min_nodes <= size and (not listed or size in listed) for size in possible)


def _able(slots: Slots, idle: Iterable[Host]) -> int:
    """How many of the idle slots whole fragments could have."""
    if slots == "node":
        return sum(host.size for host in idle if len(host.nodes) == host.size)
    return sum(len(host.nodes) // slots * slots for host in idle)


def _slots_in_words(slots: Slots, hosts: Iterable[Host]) -> str:
    if slots != "node":
        return f"{slots} slots of a node"
    sizes = {host.size for host in hosts}
    return f"all {sizes.pop()} slots of a node" if len(sizes) == 1 else "all slots of a node"
