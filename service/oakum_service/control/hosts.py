"""Which slots are of one node, for trainers whose fragments have several slots together.

To the solver a slot is a node, and the slots of one type on one node are a host.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from oakum_service.documents.node import Node
from oakum_service.documents.slots import is_part, node_of
from oakum_solver.bundles import possible_sizes
from oakum_solver.forecast import IdleNode
from oakum_solver.problem import Host, PlannedTrainer
from oakum_solver.wording import counted

HostKey = tuple[str, str]
"""A node's name, and the type of its slots."""


def sizes_of(present: Iterable[Node]) -> Counter[HostKey]:
    """How many slots of each type each node has, idle or not; one where it is given as a whole."""
    return Counter(_key(node) for node in present)


def hosts_of(
    offered: Iterable[IdleNode], present: Iterable[Node], together: Iterable[tuple[str, ...]]
) -> tuple[Host, ...]:
    """The hosts of the idle slots that are `offered` to trainers; `present` are all nodes and slots, idle or not,
    and `together` the slots that fragments hold together. A node that is given as a whole is no host: it is one
    slot."""
    sizes = sizes_of(present)
    idle: dict[HostKey, list[str]] = {}
    for slot in offered:
        if is_part(slot.node):
            idle.setdefault((node_of(slot.node), slot.node_type), []).append(slot.node)
    bundles: dict[str, list[tuple[str, ...]]] = {}
    for bundle in together:
        bundles.setdefault(node_of(bundle[0]), []).append(bundle)
    return tuple(
        Host(
            tuple(slots),
            sizes[node, kind],
            tuple(bundle for bundle in bundles.get(node, ()) if set(bundle) <= set(slots)),
        )
        for (node, kind), slots in idle.items()
    )


def leaving_together(offered: Iterable[IdleNode]) -> list[IdleNode]:
    """The slots, with one forecast for all of a type on one node: that of the slot that is expected to leave
    first, with which a fragment that has several of them leaves."""
    first: dict[HostKey, IdleNode] = {}
    offered = list(offered)
    for slot in offered:
        key = node_of(slot.node), slot.node_type
        first[key] = min(first.get(key, slot), slot, key=lambda each: each.horizon_s)
    alike = ((slot, first[node_of(slot.node), slot.node_type]) for slot in offered)
    return [dataclasses.replace(slot, horizon_s=one.horizon_s, cohort=one.cohort) for slot, one in alike]


def within_hosts(trainer: PlannedTrainer, hosts: Sequence[Host], offered: Sequence[IdleNode]) -> PlannedTrainer:
    """The trainer with the numbers of slots that it could have of these hosts, were all of them its own."""
    if trainer.bundle == 1:
        return trainer
    usable = {slot.node for slot in offered if _may_use(trainer, slot)}
    own = [host for host in hosts if set(host.nodes) <= usable]
    lone = [Host((slot.node,), 1) for slot in offered if not is_part(slot.node) and slot.node in usable]
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


def in_bundles(
    free: Iterable[Node], present: Iterable[Node], slots: int | Literal["node"]
) -> Iterator[Sequence[Node]]:
    """The nodes on which a fragment each can be launched that has so many slots of one node, of those that are
    `free`; `present` are all, free or not."""
    if slots == 1:
        yield from ([node] for node in free)
        return
    sizes = sizes_of(present)
    on_host: dict[HostKey, list[Node]] = {}
    for node in free:
        on_host.setdefault(_key(node), []).append(node)
    for key, nodes in on_host.items():
        size = sizes[key] if slots == "node" else slots
        nodes.sort(key=lambda node: node.name)
        yield from (nodes[begin : begin + size] for begin in range(0, len(nodes) - size + 1, size))


def _key(node: Node) -> HostKey:
    return node_of(node.name), node.node_type
