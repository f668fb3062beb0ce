"""Which slots are of one node, for fragments that have several of them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from oakum_service.documents.node import Node
from oakum_service.documents.slots import node_of
from oakum_solver.hosts import HostKey


def sizes_of(present: Iterable[Node]) -> Counter[HostKey]:
    """How many slots of each type each node has, idle or not; one where it is given as a whole."""
    return Counter(_key(node) for node in present)


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
