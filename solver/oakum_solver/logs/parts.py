"""Logs of machines whose nodes are idle in parts: which slots are on one node, and when it was idle as a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError

if TYPE_CHECKING:
    from oakum_solver.logs.holes import HoleLog


@dataclass(frozen=True, eq=False)
class Parts:
    """How the slots of a log, which are its `nodes`, stand together on the machine's nodes."""

    host: NDArray[np.int32]
    """For each of the log's `nodes`, the number of the machine's node that it is a slot of."""
    names: tuple[str, ...]
    """Name of each of the machine's nodes, by number."""
    slots: NDArray[np.int32]
    """Number of slots of each of the machine's nodes, those that were never idle included."""
    slot: NDArray[np.int32]
    """For each of the log's `nodes`, its number on its node, from 0 on."""


def whole_idle_s(log: HoleLog) -> float | None:
    """Slot-seconds in which all slots of a node were idle at once; None where the log has no parts of nodes."""
    if log.parts is None:
        return None
    host, start_s, end_s = _whole_spans(log, log.parts)
    return float(((end_s - start_s) * log.parts.slots[host]).sum())


def on_whole_nodes(log: HoleLog) -> HoleLog:
    """The log in which a slot is idle only while all slots of its node are. Raises `ProblemError` where the log
    has no parts of nodes."""
    if (parts := log.parts) is None:
        raise ProblemError(f"{log.name} has no slots: expected a log of parts of nodes")
    host, start_s, end_s = _whole_spans(log, parts)
    order = np.argsort(start_s, kind="stable")
    host, start_s, end_s = host[order], start_s[order], end_s[order]
    by_host = np.argsort(parts.host, kind="stable").astype(np.int32)
    first = np.searchsorted(parts.host[by_host], np.arange(len(parts.names)))
    slots = parts.slots[host]
    # Of a node that is idle as a whole each slot has holes, so that it has all of them in a row of `by_host`.
    within = np.arange(slots.sum()) - np.repeat(np.cumsum(slots) - slots, slots)
    return replace(
        log,
        node=by_host[np.repeat(first[host], slots) + within],
        start_s=np.repeat(start_s, slots),
        end_s=np.repeat(end_s, slots),
    )


def _whole_spans(log: HoleLog, parts: Parts) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """(node, start_s, end_s) of each time in which all slots of a node were idle, as arrays."""
    host = np.tile(parts.host[log.node], 2)
    time_s = np.concatenate((log.start_s, log.end_s))
    change = np.repeat([1, -1], log.num_holes)
    order = np.lexsort((time_s, host))
    host, time_s = host[order], time_s[order]
    # Each node ends as it began, with no slot idle, so that one running sum serves all.
    idle = np.cumsum(change[order])
    whole = (idle[:-1] == parts.slots[host[:-1]]) & (time_s[1:] > time_s[:-1])
    return host[:-1][whole], time_s[:-1][whole], time_s[1:][whole]
