"""What Slurm expects to take nodes: jobs that it has planned, and reservations. Pure.

All of it is in each reading of Slurm's state: nothing more is asked of Slurm. A job that Slurm has given a start
but no nodes announces itself nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from oakum_service.documents.announcement import AnnouncedKind, Announcement, Announcements
from oakum_service.documents.node import LONGEST_JOB_NAME
from oakum_service.schedulers.slurm.node_names import unfold
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmReservation, SlurmState


def announced_at(state: SlurmState, foreign: Iterable[SlurmJob], entered: Collection[str]) -> dict[str, float]:
    """Node -> when Slurm expects the first foreground job or reservation to begin there, or the first of the
    reservations `entered`, which specs may ask for, to end; in Unix seconds. Raises `SchedulerError` for lists
    that cannot be read."""
    earliest: dict[str, float] = {}
    starts = [(job.planned_nodes, start_at) for job, start_at in _planned(foreign)]
    for r in state.reservations:
        is_entered = r.name in entered and r.start_at <= state.taken_at
        at = r.end_at if is_entered else r.start_at
        if r.end_at > state.taken_at and at < math.inf:
            starts.append((r.nodes, at))
    for nodes, start_at in starts:
        for node in unfold(nodes):
            earliest[node] = min(start_at, earliest.get(node, start_at))
    return earliest


def announcements(shown: frozenset[str], state: SlurmState, foreign: Iterable[SlurmJob]) -> Announcements:
    """The planned foreground jobs, and the reservations that are not over, on any of the nodes `shown`. Raises
    `SchedulerError` for unreadable node lists."""
    planned = [_of_job(job, start_at) for job, start_at in _planned(foreign)]
    planned += [
        _of_reservation(r) for r in state.reservations if r.end_at > state.taken_at and r.start_at < math.inf
    ]
    return Announcements.of(each for each in planned if not shown.isdisjoint(unfold(each.nodes)))


def _of_job(job: SlurmJob, start_at: float) -> Announcement:
    title, end_at = job.name[:LONGEST_JOB_NAME], _known(job.end_at, start_at)
    return Announcement(AnnouncedKind.JOB, str(job.id), title, job.planned_nodes, start_at, end_at)


def _of_reservation(r: SlurmReservation) -> Announcement:
    title, end_at = "maintenance" if "MAINT" in r.flags else "", _known(r.end_at, r.start_at)
    return Announcement(AnnouncedKind.RESERVATION, r.name, title, r.nodes, r.start_at, end_at)


def _known(end_at: float | None, start_at: float) -> float | None:
    """The end, unless it is none or infinitely far."""
    return end_at if end_at is not None and start_at < end_at < math.inf else None


def _planned(foreign: Iterable[SlurmJob]) -> Iterator[tuple[SlurmJob, float]]:
    """The pending jobs that Slurm has planned, each with its expected start."""
    for job in foreign:
        is_planned = job.states[0] == "PENDING" and job.planned_nodes
        if is_planned and job.start_at is not None and job.start_at < math.inf:
            yield job, job.start_at
