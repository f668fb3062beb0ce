"""First come, first served with EASY backfilling: what most main schedulers do between their priorities.

Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, section
2: jobs start in the queue's order until one does not fit. That one, the head, gets a reservation at its
shadow time, when by the estimates of the running jobs it fits; a later job may start at once if it fits and
does not delay the head, because it ends before the shadow time or needs only nodes that the head leaves
over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oakum_solver.errors import ProblemError
from oakum_solver.logs.jobs import StartedJob, SubmittedJob


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job that waits."""

    id: str
    nodes: int
    requested_s: float
    """The user's run-time estimate."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs."""

    nodes: int
    expected_end_s: float
    """Its start plus the user's estimate. A job past it is expected to end now."""


@dataclass(frozen=True)
class Backfill:
    """What to start now, and the reservation that the rest has to respect."""

    start: tuple[str, ...]
    """Ids of the jobs to start now, in the queue's order."""
    head: str | None = None
    """The first job that has to wait; None where every job starts."""
    shadow_s: float = math.inf
    """When the head is expected to start: a foreground job's announced start. Infinite where it never fits."""
    spare_nodes: int = 0
    """Nodes that the head leaves over at its shadow time."""


def easy_backfill(
    now_s: float, free_nodes: int, queue: Sequence[QueuedJob], running: Sequence[RunningJob]
) -> Backfill:
    """Which queued jobs start now. `queue` is in order of arrival; times are on one clock, in seconds."""
    started: list[QueuedJob] = []
    for job in queue:
        if job.nodes > free_nodes:
            break
        started.append(job)
        free_nodes -= job.nodes
    if len(started) == len(queue):
        return Backfill(tuple(job.id for job in started))
    head = queue[len(started)]
    running = [*running, *(RunningJob(job.nodes, now_s + job.requested_s) for job in started)]
    shadow_s, spare = _reservation(now_s, free_nodes, head.nodes, running)
    for job in queue[len(started) + 1 :]:
        ends_before = now_s + job.requested_s <= shadow_s
        if job.nodes > free_nodes or not (ends_before or job.nodes <= spare):
            continue
        started.append(job)
        free_nodes -= job.nodes
        if not ends_before:
            spare -= job.nodes
    return Backfill(tuple(job.id for job in started), head.id, shadow_s, spare)


def _reservation(now_s: float, free_nodes: int, nodes: int, running: Sequence[RunningJob]) -> tuple[float, int]:
    """When `nodes` nodes will be free, and how many more than these will be free then."""
    ends = sorted((max(now_s, job.expected_end_s), job.nodes) for job in running)
    shadow_s = math.inf
    for end_s, released in ends:
        if end_s > shadow_s:
            break
        free_nodes += released
        if free_nodes >= nodes:
            shadow_s = end_s
    return shadow_s, max(0, free_nodes - nodes)


def easy_schedule(
    jobs: Sequence[SubmittedJob], num_nodes: int, progress: Callable[[float], None] | None = None
) -> list[StartedJob]:
    """When each job runs, had `easy_backfill` decided at every arrival and every end; in the order of `jobs`.

    Jobs that arrive together queue in the order given, and jobs end before others start. A job keeps its nodes
    for its whole run time, past its request, too. `progress` is told the share of jobs that have arrived.
    Raises `ProblemError` where a job is larger than the machine.
    """
    too_large = next((job for job in jobs if job.nodes > num_nodes), None)
    if too_large:
        raise ProblemError(f"job {too_large.id} of {too_large.nodes} nodes: expected at most {num_nodes}")
    arrivals = sorted(range(len(jobs)), key=lambda number: jobs[number].submit_s)
    start_s = [0.0] * len(jobs)
    free_nodes = num_nodes
    queue: list[QueuedJob] = []
    running: dict[int, RunningJob] = {}
    ends: list[tuple[float, int]] = []
    arrived = 0
    tick = max(1, len(jobs) // 100)
    while arrived < len(jobs) or queue:
        next_arrival_s = jobs[arrivals[arrived]].submit_s if arrived < len(jobs) else math.inf
        now_s = min(next_arrival_s, ends[0][0] if ends else math.inf)
        while ends and ends[0][0] == now_s:
            free_nodes += running.pop(heapq.heappop(ends)[1]).nodes
        while arrived < len(jobs) and jobs[arrivals[arrived]].submit_s == now_s:
            job = jobs[arrivals[arrived]]
            # Ids of a log need not be unique: the queue knows jobs by their place.
            queue.append(QueuedJob(str(arrivals[arrived]), job.nodes, job.requested_s))
            arrived += 1
            if progress and arrived % tick == 0:
                progress(arrived / len(jobs))
        for number in _starting(now_s, free_nodes, queue, running):
            job = jobs[number]
            start_s[number] = now_s
            free_nodes -= job.nodes
            running[number] = RunningJob(job.nodes, now_s + job.requested_s)
            heapq.heappush(ends, (now_s + job.run_s, number))
    return [StartedJob(job.id, at, at + job.run_s, job.nodes) for job, at in zip(jobs, start_s, strict=True)]


def _starting(now_s: float, free_nodes: int, queue: list[QueuedJob], running: dict[int, RunningJob]) -> list[int]:
    """Take the jobs that start now out of the queue."""
    if not queue or not free_nodes:
        return []
    started = set(easy_backfill(now_s, free_nodes, queue, list(running.values())).start)
    if started:
        queue[:] = [job for job in queue if job.id not in started]
    return sorted(int(id_) for id_ in started)
