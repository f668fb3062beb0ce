"""The holes of a cluster's schedule: which node was idle from when to when.

Arrays hold one element for each hole, because a year of 4,360 nodes has millions of holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import ProblemError
from oakum_solver.logs.parts import Parts


@dataclass(frozen=True, eq=False)
class HoleLog:
    """All holes of a log. A node's holes do not overlap, and each has a positive length."""

    name: str
    """Name of the file."""
    nodes: tuple[str, ...]
    """Names of the nodes, in a fixed order."""
    node: NDArray[np.int32]
    """Index into `nodes` of each hole's node."""
    start_s: NDArray[np.float64]
    """Start of each hole in seconds since the log's start, without the time that was cut out; ascending."""
    end_s: NDArray[np.float64]
    duration_s: float
    """Length of the log in seconds, without the time that was cut out."""
    cut_s: float = 0.0
    """Seconds of maintenance that were cut out."""
    notes: tuple[str, ...] = ()
    """What was skipped, cut, clipped or shifted, as sentences for a person."""
    parts: Parts | None = None
    """Which slots are on one node, where `nodes` are slots; None: they are nodes."""

    @property
    def num_holes(self) -> int:
        """Number of holes on all nodes."""
        return len(self.node)

    @property
    def idle_node_s(self) -> float:
        """Lengths of all holes together, in node-seconds."""
        return float((self.end_s - self.start_s).sum())

    def noted(self, *notes: str) -> HoleLog:
        """The log with these notes before its own."""
        return replace(self, notes=(*notes, *self.notes))

    def between(self, start_s: float, end_s: float) -> HoleLog:
        """The part of the log from `start_s` to `end_s`, or to its end; t = 0 is moved to `start_s`.

        Holes that cross the borders are clipped. `cut_s` is 0, because the log does not record where maintenance
        was cut out. Raises `ProblemError` where the window contains no time of the log.
        """
        end_s = min(end_s, self.duration_s)
        if not 0.0 <= start_s < end_s:
            raise ProblemError(
                f"the window from {start_s:g} s to {end_s:g} s: expected a start before the end, both within "
                f"the log's {self.duration_s:g} s"
            )
        window = f"from {start_s / 3600.0:.1f} h to {end_s / 3600.0:.1f} h of {self.duration_s / 3600.0:.1f} h"
        notes = self.notes if end_s - start_s == self.duration_s else (f"only the time {window}", *self.notes)
        return replace(self.clipped(start_s, end_s), cut_s=0.0, notes=notes)

    def clipped(self, start_s: float, end_s: float) -> HoleLog:
        """The part of the log from `start_s` to `end_s`, with t = 0 moved to `start_s`. Holes that cross the
        borders are clipped; notes and `cut_s` stay. The caller ensures that the window lies in the log; `between`
        checks it."""
        # Holes are sorted by start, so those that start after the window are skipped.
        before_end = slice(int(np.searchsorted(self.start_s, end_s, side="left")))
        inside = np.flatnonzero(self.end_s[before_end] > start_s)
        return replace(
            self,
            node=self.node[inside],
            start_s=np.maximum(self.start_s[inside] - start_s, 0.0),
            end_s=np.minimum(self.end_s[inside], end_s) - start_s,
            duration_s=end_s - start_s,
        )


def changes(log: HoleLog) -> Iterator[tuple[float, NDArray[np.int32], NDArray[np.int32]]]:
    """Yield (time_s, nodes whose holes end, nodes that become idle) for each time at which a hole begins or ends.

    Times ascend, and nodes are indexes into `log.nodes`. A node is in both arrays if one of its holes ends and the
    next begins at the same time, as at a cut. Holes that last to the log's end, end there.
    """
    by_end = np.argsort(log.end_s, kind="stable").astype(np.int32)
    leaving = log.node[by_end]
    end_times, end_first = _runs(log.end_s[by_end])
    start_times, start_first = _runs(log.start_s)
    ended = started = 0
    for time_s in np.union1d(start_times, end_times).tolist():
        leave, join = leaving[:0], leaving[:0]
        if ended < len(end_times) and end_times[ended] == time_s:
            leave = leaving[end_first[ended] : end_first[ended + 1]]
            ended += 1
        if started < len(start_times) and start_times[started] == time_s:
            join = log.node[start_first[started] : start_first[started + 1]]
            started += 1
        yield time_s, leave, join


def count_changes(log: HoleLog) -> int:
    """Number of items that `changes` yields."""
    return len(np.union1d(_runs(log.start_s)[0], _runs(np.sort(log.end_s))[0]))


def _runs(times_s: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """(distinct values of an ascending array, index at which each value begins, followed by the array's
    length)."""
    begins = np.flatnonzero(np.diff(times_s, prepend=-np.inf) > 0)
    return times_s[begins], np.append(begins, len(times_s))
