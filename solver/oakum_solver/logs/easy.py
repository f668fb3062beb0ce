"""First come, first served with EASY backfilling: what most main schedulers do between their priorities.

Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001, section
2: jobs start in the queue's order until one does not fit. That one, the head, gets a reservation at its
shadow time, when by the estimates of the running jobs it fits; a later job may start at once if it fits and
does not delay the head, because it ends before the shadow time or needs only nodes that the head leaves
over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
