"""Parses nodes in Slurm's JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from oakum_service.schedulers.slurm.reading.fields import (
    FieldError,
    Number,
    Text,
    Texts,
    number,
    ordered_states,
    words,
)
from oakum_service.schedulers.slurm.reading.state import SlurmNode

_BASES = frozenset({"ALLOCATED", "DOWN", "ERROR", "FUTURE", "IDLE", "MIXED", "UNKNOWN", "INVALID"})
_RENAMED = {
    "ALLOC": "ALLOCATED",
    "BLOCK": "BLOCKED",
    "COMP": "COMPLETING",
    "DRAINING": "DRAIN",
    "DRAINED": "DRAIN",
    "DRNG": "DRAIN",
    "FAILED": "FAIL",
    "FAILG": "FAIL",
    "FAILING": "FAIL",
    "FUTR": "FUTURE",
    "INVAL": "INVALID",
    "MAINTENANCE": "MAINT",
    "MIX": "MIXED",
    "NO_RESPOND": "NOT_RESPONDING",
    "NPC": "PERFCTRS",
    "PLND": "PLANNED",
    "POWER": "POWERED_DOWN",
    "POWER_SAVING": "POWERED_DOWN",
    "POW_DN": "POWERING_DOWN",
    "POW_UP": "POWERING_UP",
    "REBOOT": "REBOOT_REQUESTED",
    "RESV": "RESERVED",
    "UNK": "UNKNOWN",
}
"""State as old versions, `sinfo` and some parsers write it -> state as `scontrol` writes it today."""
_BASE_OF_FLAG = {
    "BLOCKED": "IDLE",
    "COMPLETING": "IDLE",
    "MAINT": "IDLE",
    "PERFCTRS": "IDLE",
    "PLANNED": "IDLE",
    "POWERED_DOWN": "IDLE",
    "POWERING_DOWN": "IDLE",
    "POWERING_UP": "IDLE",
    "POWER_DOWN": "IDLE",
    "POWER_UP": "IDLE",
    "REBOOT_ISSUED": "IDLE",
    "REBOOT_REQUESTED": "IDLE",
    "RESERVED": "IDLE",
    "DRAIN": "UNKNOWN",
    "FAIL": "UNKNOWN",
    "NOT_RESPONDING": "UNKNOWN",
}
"""Flag -> base state of a node of which Slurm gives the flag in place of the base state. It does so for a node
that is idle, and until 20.11 also within a longer word: `REBOOT*+DRAIN`."""
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
    gres_used: Text = None
    gres_drained: Text = None
    cpus: Number = None
    effective_cpus: Number = None
    alloc_cpus: Number = None
    real_memory: Number = None
    specialized_memory: Number = None
    alloc_memory: Number = None


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
        gres_used=gres(wire.gres_used),
        gres_drained=gres(wire.gres_drained),
        cpus=_amount(wire.effective_cpus) or _amount(wire.cpus),
        used_cpus=_amount(wire.alloc_cpus),
        memory_mb=max(0, _amount(wire.real_memory) - _amount(wire.specialized_memory)),
        used_memory_mb=_amount(wire.alloc_memory),
    )


def salvaged_node(told: Mapping[str, Any]) -> SlurmNode | None:
    """What can be used of a node that cannot be read: its name and its partitions. None if it has no name."""
    if not isinstance(told.get("name"), str) or not told["name"]:
        return None
    partitions: tuple[str, ...] = ()
    with suppress(msgspec.ValidationError):
        partitions = words(msgspec.convert(told.get("partitions"), Texts))
    return unknown_node(told["name"], partitions)


def unknown_node(name: str, partitions: tuple[str, ...]) -> SlurmNode:
    """A node of which nothing else is known; it counts as unavailable."""
    return SlurmNode(name=name, address=name, states=("UNKNOWN",), partitions=partitions)


def node_states(given: list[str]) -> tuple[str, ...]:
    """Base state first, then flags, in today's names. Where no base state is given, it follows from the first flag
    that Slurm writes in its place. Raises `FieldError` for two base states, or none."""
    states: list[str] = []
    for state in filter(None, given):
        match = _STATE.fullmatch(state.upper())
        if match is None:
            raise FieldError("state", given, "states such as IDLE or DRAIN")
        states.append(_RENAMED.get(match[1], match[1]))
        states.extend(_SUFFIXES[sign] for sign in match[2])
    ordered = ordered_states(states, _BASES)
    if ordered and ordered[0] not in _BASES and not _BASE_OF_FLAG.keys().isdisjoint(ordered):
        ordered = (next(_BASE_OF_FLAG[state] for state in ordered if state in _BASE_OF_FLAG), *ordered)
    if not ordered or ordered[0] not in _BASES or (len(ordered) > 1 and ordered[1] in _BASES):
        raise FieldError("state", given, f"exactly one of {', '.join(sorted(_BASES))}, and flags")
    return ordered


def gres(given: str | None) -> str:
    """The GRES; empty for `(null)` and N/A."""
    return "" if given in (None, "(null)", "N/A") else given or ""


def _amount(value: Number) -> int:
    """The number; 0 where it is not told, or cannot be one of CPUs or megabytes."""
    given = number(value)
    return 0 if given is None or not 0 <= given < math.inf else int(given)


def _given_states(wire: WireNode) -> list[str]:
    if isinstance(wire.state, list):
        return wire.state + (wire.state_flags or [])
    if wire.state_flags is None:
        raise FieldError("state_flags", "missing", "the flags of a state that comes as one string")
    return [wire.state, *wire.state_flags]
