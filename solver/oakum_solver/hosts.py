"""Which idle slots are of one host, for trainers whose fragments have several slots together.

To the solver a slot is a node, and the slots of one type on one machine are a host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from oakum_solver.bundles import possible_sizes
from oakum_solver.forecast import IdleNode
from oakum_solver.problem import Host, PlannedTrainer
from oakum_solver.wording import counted

HostKey = tuple[str, str]
"""A machine's name, and the type of its slots."""


def hosts_of(
    offered: Iterable[IdleNode], sizes: Mapping[HostKey, int], together: Iterable[tuple[str, ...]]
) -> tuple[Host, ...]:
    """The hosts of the idle slots that are `offered` to trainers; `sizes` says how many slots each has, idle or
    not, and `together` has the slots that fragments hold together. A machine that is given as a whole is no host:
    it is one slot."""
    idle: dict[HostKey, list[str]] = {}
    host_of: dict[str, HostKey] = {}
    for slot in offered:
        if slot.host is not None:
            host_of[slot.node] = slot.host, slot.node_type
            idle.setdefault((slot.host, slot.node_type), []).append(slot.node)
    bundles: dict[HostKey, list[tuple[str, ...]]] = {}
    for bundle in together:
        if bundle[0] in host_of:
            bundles.setdefault(host_of[bundle[0]], []).append(bundle)
    return tuple(
        Host(
            tuple(slots),
            sizes[key],
            tuple(bundle for bundle in bundles.get(key, ()) if set(bundle) <= set(slots)),
        )
        for key, slots in idle.items()
    )


def leaving_together(offered: Iterable[IdleNode]) -> list[IdleNode]:
    """The slots, with one forecast for all of a type on one machine: that of the slot that is expected to leave
    first, with which a fragment that has several of them leaves."""
    first: dict[HostKey, IdleNode] = {}
    offered = list(offered)
    for slot in offered:
        key = _key(slot)
        first[key] = min(first.get(key, slot), slot, key=lambda each: each.horizon_s)
    alike = ((slot, first[_key(slot)]) for slot in offered)
    return [dataclasses.replace(slot, horizon_s=one.horizon_s, cohort=one.cohort) for slot, one in alike]


def _key(slot: IdleNode) -> HostKey:
    return slot.host or slot.node, slot.node_type


def within_hosts(trainer: PlannedTrainer, hosts: Sequence[Host], offered: Sequence[IdleNode]) -> PlannedTrainer:
    """The trainer with the numbers of slots that it could have of these hosts, were all of them its own; with one
    that no plan can give it where there is none."""
    if trainer.bundle == 1:
        return trainer
    usable = {slot.node for slot in offered if _may_use(trainer, slot)}
    own = [host for host in hosts if set(host.nodes) <= usable]
    lone = [Host((slot.node,), 1) for slot in offered if slot.host is None and slot.node in usable]
    sizes = [
        size for size in possible_sizes(trainer.bundle, [*own, *lone], trainer.max_nodes) if trainer.allows(size)
    ]
    if not sizes:  # more than there are: no plan gives it any
        out_of_reach = max(trainer.max_nodes, len(offered)) + 1
        sizes = [out_of_reach]
    asked = trainer.max_nodes if trainer.bundle == "host" else trainer.max_nodes // trainer.bundle * trainer.bundle
    limit = _limit(trainer, [*own, *lone]) if sizes[-1] != asked else ""
    return dataclasses.replace(trainer, min_nodes=sizes[0], max_nodes=sizes[-1], sizes=tuple(sizes), limit=limit)


def _may_use(trainer: PlannedTrainer, slot: IdleNode) -> bool:
    curves = trainer.curves_by_type
    has_access = trainer.access is None or slot.access in trainer.access
    return has_access and (curves is None or slot.node_type in curves)


def _limit(trainer: PlannedTrainer, hosts: Sequence[Host]) -> str:
    """Why the trainer could have no more slots, as a clause."""
    if trainer.bundle == "host":
        whole = sum(len(host.nodes) == host.size for host in hosts)
        return f"a fragment of it needs all slots of a node, and {_nodes_that(whole)} all idle"
    able = sum(len(host.nodes) >= trainer.bundle for host in hosts)
    most = max((len(host.nodes) for host in hosts), default=0)
    text = f"a fragment of it needs {trainer.bundle} slots of one node, and "
    if not able:
        return f"{text}no node has more than {most} idle" if most else f"{text}no slot that it may have is idle"
    return f"{text}only {counted(able, 'node')} {'has' if able == 1 else 'have'} so many idle"


def _nodes_that(number: int) -> str:
    if number == 0:
        return "of no node are they"
    return f"of only {counted(number, 'node')} are they"
