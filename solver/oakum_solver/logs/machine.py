"""Places jobs on a machine's nodes in order of time and records the holes between them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.jobs import StartedJob
from oakum_solver.logs.parts import Parts

Placement = Literal["first", "fifo"]
"""Which free nodes a job takes: the lowest-numbered ("first") or those that have been free the longest
("fifo")."""
Progress = Callable[[float], None]
"""Called with the finished share of the work, from 0 to 1."""


class MachineOccupancy:
    """The busy and the free nodes of a machine, and the holes that have ended so far. Times are seconds since the
    log's start."""

    def __init__(
        self,
        num_nodes: int,
        placement: Placement,
        turnover_s: float,
        num_starts: int,
        slots_per_node: int = 1,
    ) -> None:
        """With several `slots_per_node` what is called a node here is a slot, and jobs are packed on their hosts;
        `placement` is not used then."""
        self.free: _LowestFirst | _LongestFirst | _Packed
        if slots_per_node > 1:
            self.free = _Packed(num_nodes, slots_per_node)
        else:
            self.free = _LowestFirst(num_nodes) if placement == "first" else _LongestFirst(num_nodes)
        self._slots_per_node = slots_per_node
        self._turnover_s = turnover_s
        self._usable_from_s = np.zeros(num_nodes)
        self._num_holes = 0
        # Each start of a job on a node, and the log's end, closes at most one hole: one allocation suffices.
        self._node = np.empty(num_starts + num_nodes, dtype=np.int32)
        self._start_s = np.empty(num_starts + num_nodes)
        self._end_s = np.empty(num_starts + num_nodes)

    def start(self, count: int, now_s: float) -> NDArray[np.intp]:
        """Start a job on `count` free nodes and return their numbers."""
        nodes = self.free.take(count)
        self._close_holes(nodes, now_s)
        return nodes

    def end(self, nodes: NDArray[np.intp], now_s: float) -> None:
        """Free `nodes`, whose jobs end now. Their next holes begin when the turnover time has passed."""
        self.free.put(nodes)
        self._usable_from_s[nodes] = now_s + self._turnover_s

    def hole_log(self, name: str, duration_s: float) -> HoleLog:
        """All holes, including those that last to the log's end at `duration_s`. To be called once, after every
        job has ended."""
        num_nodes = len(self._usable_from_s)
        self._close_holes(np.arange(num_nodes), duration_s)
        by_start = np.argsort(self._start_s[: self._num_holes], kind="stable")
        names, parts = _named(num_nodes, self._slots_per_node)
        return HoleLog(
            name=name,
            nodes=names,
            node=self._node[by_start],
            start_s=self._start_s[by_start],
            end_s=self._end_s[by_start],
            duration_s=duration_s,
            parts=parts,
        )

    def _close_holes(self, nodes: NDArray[np.intp], end_s: float) -> None:
        nodes = nodes[self._usable_from_s[nodes] < end_s]
        rows = slice(self._num_holes, self._num_holes + len(nodes))
        self._node[rows] = nodes
        self._start_s[rows] = self._usable_from_s[nodes]
        self._end_s[rows] = end_s
        self._num_holes += len(nodes)


def _named(num_slots: int, slots_per_node: int) -> tuple[tuple[str, ...], Parts | None]:
    """Names of nodes, or of slots and how they stand together."""
    digits = len(str(num_slots // slots_per_node - 1))
    nodes = tuple(f"n{node:0{digits}d}" for node in range(num_slots // slots_per_node))
    if slots_per_node == 1:
        return nodes, None
    host, slot = np.divmod(np.arange(num_slots, dtype=np.int32), slots_per_node)
    sizes = np.full(len(nodes), slots_per_node, dtype=np.int32)
    return tuple(f"{node}:{k}" for node in nodes for k in range(slots_per_node)), Parts(host, nodes, sizes, slot)


def place_jobs(
    jobs: Sequence[StartedJob], machine: MachineOccupancy, progress: Progress | None
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Place jobs, given in order of start.

    Returns the start, end and delay of each job in seconds; starts and ends count from the first start, and a
    delay is the time after the recorded start for which a job waited for free nodes.
    """
    recorded_s = [job.start_s - jobs[0].start_s for job in jobs]
    started_s, delay_s = np.array(recorded_s), np.zeros(len(jobs))
    ended_s = np.array([job.end_s - jobs[0].start_s for job in jobs])
    running: list[tuple[float, int]] = []
    held: dict[int, NDArray[np.intp]] = {}
    waiting: list[int] = []
    arrived = 0
    tick = max(1, len(jobs) // 100)
    while arrived < len(jobs) or waiting or running:
        next_start_s = recorded_s[arrived] if arrived < len(jobs) else math.inf
        now_s = min(next_start_s, running[0][0] if running else math.inf)
        ended = []
        while running and running[0][0] == now_s:
            ended.append(held.pop(heapq.heappop(running)[1]))
        if ended:
            machine.end(np.concatenate(ended), now_s)
        while arrived < len(jobs) and recorded_s[arrived] == now_s:
            waiting.append(arrived)
            arrived += 1
            if progress and arrived % tick == 0:
                progress(arrived / len(jobs))
        still_waiting = []
        for job in waiting:
            if jobs[job].nodes > machine.free.count:
                still_waiting.append(job)
                continue
            held[job] = machine.start(jobs[job].nodes, now_s)
            if now_s > recorded_s[job]:
                delay_s[job] = now_s - recorded_s[job]
                started_s[job], ended_s[job] = now_s, now_s + jobs[job].end_s - jobs[job].start_s
            heapq.heappush(running, (float(ended_s[job]), job))
        waiting = still_waiting
    return started_s, ended_s, delay_s


class _LowestFirst:
    """Free nodes, of which the lowest-numbered are taken first."""

    def __init__(self, num_nodes: int) -> None:
        self.count = num_nodes
        self._is_free = np.ones(num_nodes, dtype=np.bool_)

    def take(self, count: int) -> NDArray[np.intp]:
        nodes = np.flatnonzero(self._is_free)[:count]
        self._is_free[nodes] = False
        self.count -= count
        return nodes

    def put(self, nodes: NDArray[np.intp]) -> None:
        self._is_free[nodes] = True
        self.count += len(nodes)


class _LongestFirst:
    """Free nodes, of which those that have been free the longest are taken first; ties go to the lowest number."""

    def __init__(self, num_nodes: int) -> None:
        self.count = num_nodes
        self._ring = np.arange(num_nodes)
        self._first = 0

    def take(self, count: int) -> NDArray[np.intp]:
        nodes = self._ring[self._places(self._first, count)]
        self._first = (self._first + count) % len(self._ring)
        self.count -= count
        return nodes

    def put(self, nodes: NDArray[np.intp]) -> None:
        self._ring[self._places(self._first + self.count, len(nodes))] = np.sort(nodes)
        self.count += len(nodes)

    def _places(self, first: int, count: int) -> NDArray[np.intp]:
        return np.arange(first, first + count) % len(self._ring)


class _Packed:
    """Free slots of nodes, of which a job takes wholly free nodes first, then of the fullest node that has room
    for the rest; what has no room on one node is scattered over the emptiest ones. Ties go to the lowest
    number."""

    def __init__(self, num_slots: int, slots_per_node: int) -> None:
        self.count = num_slots
        self._size = slots_per_node
        self._is_free = np.ones(num_slots, dtype=np.bool_)
        self._num_free = np.full(num_slots // slots_per_node, slots_per_node)

    def take(self, count: int) -> NDArray[np.intp]:
        whole = np.flatnonzero(self._num_free == self._size)[: count // self._size]
        taken = [self._take_of(int(node), self._size) for node in whole]
        rest = count - len(whole) * self._size
        while rest:
            room = np.flatnonzero(self._num_free >= rest)
            node = room[np.argmin(self._num_free[room])] if len(room) else np.argmax(self._num_free)
            taken.append(self._take_of(int(node), min(rest, int(self._num_free[node]))))
            rest -= len(taken[-1])
        return np.concatenate(taken)

    def put(self, slots: NDArray[np.intp]) -> None:
        self._is_free[slots] = True
        np.add.at(self._num_free, slots // self._size, 1)
        self.count += len(slots)

    def _take_of(self, node: int, count: int) -> NDArray[np.intp]:
        first = node * self._size
        slots = first + np.flatnonzero(self._is_free[first : first + self._size])[:count]
        self._is_free[slots] = False
        self._num_free[node] -= count
        self.count -= count
        return slots
