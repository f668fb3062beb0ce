"""Logs of machines whose nodes are idle in parts: which slots are on one node, and when it was idle as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
    parts = log.parts
    if parts is None:
        return None
    host = np.tile(parts.host[log.node], 2)
    time_s = np.concatenate((log.start_s, log.end_s))
    change = np.repeat([1, -1], log.num_holes)
    order = np.lexsort((time_s, host))
    host, time_s = host[order], time_s[order]
    # Each node ends as it began, with no slot idle, so that one running sum serves all.
    idle = np.cumsum(change[order])
    whole = idle[:-1] == parts.slots[host[:-1]]
    return float((np.diff(time_s) * parts.slots[host[:-1]])[whole].sum())
