"""First come, first served with EASY backfilling, the policy of most main schedulers among jobs of one priority.

Jobs start in the queue's order until one does not fit. This job, the head, gets a reservation at its shadow time:
the time at which it fits according to the run-time estimates of the running jobs. A later job may start at once if
it fits and does not delay the head, either because it ends before the shadow time or because it needs only nodes
that the head leaves over. Sources: Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson,
IEEE TPDS 12(6), 2001, section 2.
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
    """A job that waits in the queue, with its size and its user's estimate."""

    id: str
    nodes: int
    requested_s: float
    """The user's run-time estimate."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that runs, with its size and its expected end."""

    nodes: int
    expected_end_s: float
    """Start plus the user's run-time estimate; a job past this time is expected to end now."""


@dataclass(frozen=True)
class Backfill:
    """The jobs to start now, and the reservation of the first job that has to wait."""

    start: tuple[str, ...]
    """Ids of the jobs to start now, in the queue's order."""
    head: str | None = None
    """Id of the first job that has to wait; None where every job starts."""
    shadow_s: float = math.inf
    """Shadow time: when the head is expected to start; infinite where it never fits."""
    spare_nodes: int = 0
    """Number of nodes that the head leaves over at its shadow time."""


def easy_backfill(
    now_s: float, free_nodes: int, queue: Sequence[QueuedJob], running: Sequence[RunningJob]
) -> Backfill:
    """Decide which queued jobs start now, and when the first of the others is expected to start. `queue` is in
    order of arrival; all times are seconds on one clock. Returns both."""
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
    """(time at which `nodes` nodes are expected to be free, number of nodes free beyond them at that time)."""
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
    """Simulate `easy_backfill` at every arrival and end; returns the jobs with their starts, in the order of
    `jobs`.

    Jobs that arrive at one time queue in the given order, and at one time jobs end before others start. A job
    keeps its nodes for its whole run time, even beyond its request. `progress` is called with the share of arrived
    jobs. Raises `ProblemError` where a job is larger than the machine.
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
            # Ids in a log need not be unique, so the queue identifies jobs by their index.
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
    """Remove the jobs that start now from the queue and return their indexes."""
    if not queue or not free_nodes:
        return []
    started = set(easy_backfill(now_s, free_nodes, queue, list(running.values())).start)
    if started:
        queue[:] = [job for job in queue if job.id not in started]
    return sorted(int(id_) for id_ in started)
