"""Names of slots: a slot is the least of a node that a foreground job can take, a GPU with its share of cores and
memory. A node that is given as a whole has one slot, whose name is the node's; any other is named by its node and
its number there: `n001:2`. No name of a node holds a colon. Several slots of one node that a fragment has together
are named by all their numbers: `n001:0+2`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_SEPARATOR = ":"
JOINT = "+"
"""Between the numbers of slots that a fragment has together."""


def slot_name(node: str, number: int) -> str:
    """Name of a slot of a node that is given in parts."""
    return f"{node}{_SEPARATOR}{number}"


def bundle_name(slots: Sequence[str]) -> str:
    """Name of slots of one node that a fragment has together; of a single one its own."""
    if len(slots) == 1:
        return slots[0]
    numbers = sorted(map(number_of, slots))
    return f"{node_of(slots[0])}{_SEPARATOR}{JOINT.join(map(str, numbers))}"


def slots_in(name: str) -> tuple[str, ...]:
    """Names of the slots that a fragment on `name` has: of one slot, or a node as a whole, that itself."""
    node, separator, numbers = name.partition(_SEPARATOR)
    return tuple(f"{node}{separator}{number}" for number in numbers.split(JOINT))


def node_of(slot: str) -> str:
    """The node that a slot, or several together, is on."""
    return slot.partition(_SEPARATOR)[0]


def nodes_of(slots: Iterable[str]) -> list[str]:
    """The nodes that the slots are on, each once, in order."""
    return list(dict.fromkeys(map(node_of, slots)))


def number_of(slot: str) -> int:
    """The number of a slot on its node, from 0 on; 0 for a node as a whole."""
    return int(slot.partition(_SEPARATOR)[2] or 0)


def is_part(slot: str) -> bool:
    """Whether the slot is a part of its node, rather than the node as a whole."""
    return _SEPARATOR in slot
