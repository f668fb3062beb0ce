"""Parses nodes in Slurm's JSON."""

from __future__ import annotations

import re

import msgspec

from oakum_service.schedulers.slurm.reading.fields import FieldError, Text, Texts, ordered_states, words
from oakum_service.schedulers.slurm.reading.state import SlurmNode

_BASES = frozenset({"ALLOCATED", "DOWN", "ERROR", "FUTURE", "IDLE", "MIXED", "UNKNOWN", "INVALID"})
_RENAMED = {
    "ALLOC": "ALLOCATED",
    "MIX": "MIXED",
    "DRAINING": "DRAIN",
    "DRAINED": "DRAIN",
    "FAILED": "FAIL",
    "MAINTENANCE": "MAINT",
    "NO_RESPOND": "NOT_RESPONDING",
    "POWER": "POWERED_DOWN",
    "POWER_SAVING": "POWERED_DOWN",
}
"""State as old versions and some parsers write it -> state as `scontrol` writes it today."""
_SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
"""Sign that old versions append to a state -> flag."""
_STATE = re.compile(r"([A-Z_]+)([*~#%!$@^-]*)")


class WireNode(msgspec.Struct, gc=False):
    """The fields of a node that are read. A field with a default is missing from some version."""

    name: str
    state: str | list[str]
    partitions: Texts
    gres: Text
    active_features: Texts
    state_flags: list[str] | None = None
    """Present until 22.05, where `state` is the base state only."""
    address: Text = None
    hostname: Text = None
    reservation: Text = None


def to_node(wire: WireNode) -> SlurmNode:
    """The node. Raises `FieldError` if it has no name, or its state could only be guessed."""
    if not wire.name:
        raise FieldError("name", wire.name, "a node's name")
    return SlurmNode(
        name=wire.name,
        address=wire.address or wire.hostname or wire.name,
        states=node_states(_given_states(wire)),
        partitions=words(wire.partitions),
        gres=gres(wire.gres),
        features=words(wire.active_features),
        reservation=wire.reservation or "",
    )


def node_states(given: list[str]) -> tuple[str, ...]:
    """Base state first, then flags, in today's names. Raises `FieldError` unless there is exactly one base
    state."""
    states: list[str] = []
    for state in given:
        match = _STATE.fullmatch(state.upper())
        if match is None:
            raise FieldError("state", given, "states such as IDLE or DRAIN")
        states.append(_RENAMED.get(match[1], match[1]))
        states.extend(_SUFFIXES[sign] for sign in match[2])
    ordered = ordered_states(states, _BASES)
    if not ordered or ordered[0] not in _BASES or (len(ordered) > 1 and ordered[1] in _BASES):
        raise FieldError("state", given, f"exactly one of {', '.join(sorted(_BASES))}, and flags")
    return ordered


def gres(given: str | None) -> str:
    """The GRES; empty for `(null)` and N/A."""
    return "" if given in (None, "(null)", "N/A") else given or ""


def _given_states(wire: WireNode) -> list[str]:
    if isinstance(wire.state, list):
        return wire.state + (wire.state_flags or [])
    if wire.state_flags is None:
        raise FieldError("state_flags", "missing", "the flags of a state that comes as one string")
    return [wire.state, *wire.state_flags]
