"""Names of slots: a slot is the least of a node that a foreground job can take, a GPU with its share of cores and
memory. A node that is given as a whole has one slot, whose name is the node's; any other is named by its node and
its number there: `n001:2`. No name of a node holds a colon."""

from __future__ import annotations

from collections.abc import Iterable

_SEPARATOR = ":"


def slot_name(node: str, number: int) -> str:
    """Name of a slot of a node that is given in parts."""
    return f"{node}{_SEPARATOR}{number}"


def node_of(slot: str) -> str:
    """The node that a slot is on."""
    return slot.partition(_SEPARATOR)[0]


def nodes_of(slots: Iterable[str]) -> list[str]:
    """The nodes that the slots are on, each once, in order."""
    return list(dict.fromkeys(map(node_of, slots)))


def is_part(slot: str) -> bool:
    """Whether the slot is a part of its node, rather than the node as a whole."""
    return _SEPARATOR in slot
