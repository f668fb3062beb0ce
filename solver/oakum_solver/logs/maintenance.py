"""Finds maintenance, the stretches in which next to nothing runs, and cuts it out of a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog

SHORTEST_STRETCH_S = 2 * 3600.0
BUSY_SHARE = 0.05
"""Share of busy nodes below which the machine counts as down, if that lasts for `SHORTEST_STRETCH_S` or longer."""


def maintenance_stretches(
    start_s: NDArray[np.float64], end_s: NDArray[np.float64], nodes: NDArray[np.int64], num_nodes: int
) -> list[tuple[float, float]]:
    """(start_s, end_s) of each stretch in which the machine was down, from the jobs' starts, ends and sizes."""
    times_s, place = np.unique(np.concatenate((start_s, end_s)), return_inverse=True)
    change = np.bincount(place, weights=np.concatenate((nodes, -nodes)))
    # Busy nodes between times_s[i] and times_s[i + 1]; sums of whole numbers are exact.
    down = (np.cumsum(change) < BUSY_SHARE * num_nodes)[:-1]
    edges = np.diff(np.concatenate(([False], down, [False])).astype(np.int8))
    begins, ends = times_s[np.flatnonzero(edges == 1)], times_s[np.flatnonzero(edges == -1)]
    long = ends - begins >= SHORTEST_STRETCH_S
    return list(zip(begins[long].tolist(), ends[long].tolist(), strict=True))


def cut_out(log: HoleLog, stretches: Sequence[tuple[float, float]]) -> HoleLog:
    """The log without these stretches of time: a hole ends where a stretch begins, and everything later is
    shifted to earlier times by the length of the stretches before it. `cut_s` of the result counts what was cut
    out.

    A hole that lasts through a stretch becomes two adjacent holes, so that a replay sees the node leave and
    come back. `stretches` are in order of time and must not cover the whole log.
    """
    ends = [begin for begin, _ in stretches] + [log.duration_s]
    begins = [0.0] + [end for _, end in stretches]
    kept = [log.clipped(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]
    offsets_s = np.cumsum([0.0] + [piece.duration_s for piece in kept]).tolist()
    return replace(
        log,
        node=np.concatenate([piece.node for piece in kept]),
        start_s=np.concatenate([piece.start_s + at for piece, at in zip(kept, offsets_s, strict=False)]),
        end_s=np.concatenate([piece.end_s + at for piece, at in zip(kept, offsets_s, strict=False)]),
        duration_s=offsets_s[-1],
        cut_s=log.cut_s + log.duration_s - offsets_s[-1],
    )


def without_maintenance(log: HoleLog, stretches: Sequence[tuple[float, float]]) -> tuple[HoleLog, list[str]]:
    """The log without these stretches, as `cut_out` makes it, and notes on them. Raises `LogError` where nothing
    else is left."""
    if not stretches:
        return log, []
    rule = f"{SHORTEST_STRETCH_S / 3600.0:g} h and more with under {BUSY_SHARE:.0%} of the nodes busy"
    cut_s = sum(end - begin for begin, end in stretches)
    if cut_s >= log.duration_s:
        raise LogError(
            f"{log.name}: all of it is a stretch of {rule}, and would be cut out as maintenance: expected jobs "
            f"that fill more of {len(log.nodes)} nodes; keep the maintenance, or give the right number of nodes"
        )
    share = cut_s / log.duration_s
    cuts = f"{len(stretches)}, {cut_s / 3600.0:.1f} h or {share:.1%} of the time in all"
    return cut_out(log, stretches), [f"stretches of maintenance cut out ({rule}): {cuts}"]
