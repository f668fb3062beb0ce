"""Places a workload log's jobs on nodes and returns the holes between them.

A workload log says when a job ran and on how many nodes, but not on which. This module gives each job nodes when
it starts: the lowest-numbered free ones ("first"), as a scheduler with a fixed order of nodes does, or those that
have been free the longest ("fifo"). Both give the same idle node-time, but holes of different lengths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oakum_solver.errors import LogError, ProblemError
from oakum_solver.logs.easy import easy_schedule
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.jobs import StartedJob, SubmittedJob
from oakum_solver.logs.machine import MachineOccupancy, Placement, Progress, place_jobs
from oakum_solver.logs.maintenance import maintenance_stretches, without_maintenance
from oakum_solver.logs.swf import Job, SwfLog, SwfStatus, read_swf

Maintenance = Literal["cut", "keep"]

_MOST_NODES = 1_000_000
"""Largest number of nodes accepted: several times the largest machine. Bounds the memory that a wrong header or
option can take."""
_DOUBT = "NOT TO BE BELIEVED: "
"""Begins a note by which the log was probably misread. Such notes come first."""
_LONG_S = 3600.0
"""Mean delay in seconds that rounded times do not explain, and mean wait that a machine may have to its log's."""
_WAITS_LONGER = 5.0
"""Waits of a schedule this many times as long as the log's own are another machine's."""
_PARTS = (SwfStatus.PARTIAL, SwfStatus.PARTIAL_COMPLETED, SwfStatus.PARTIAL_FAILED)


def holes_of_jobs(
    name: str,
    jobs: Sequence[StartedJob],
    num_nodes: int,
    *,
    placement: Placement = "first",
    slots_per_node: int = 1,
    turnover_s: float = 0.0,
    maintenance: Maintenance = "cut",
    progress: Progress | None = None,
) -> HoleLog:
    """The holes that these jobs leave on a machine of `num_nodes` nodes, from the first start to the last end.
    With several `slots_per_node` jobs' sizes count slots, the holes are those of slots, and jobs are packed.

    At one time, jobs end before others start. If too few nodes are free at a job's recorded start, which happens
    because logs round times, the job starts as soon as enough are free and keeps its run time; other jobs keep
    their recorded starts meanwhile. (On the logs of Theta 2022 and KTH SP2 1996 this delays 10 and 57 jobs and
    misplaces 360 of 28.9 million and 484 of 562,000 node-hours. Skipping such jobs would count 1,340 and 360
    node-hours as idle.)

    The first `turnover_s` seconds after each job belong to no hole, but never delay the next job. With maintenance
    "cut", stretches of 2 h or more in which fewer than 5 % of the nodes are busy are cut out of the time axis.

    Raises `LogError` where no job or no time is left, and `ProblemError` for an impossible machine or job.
    """
    if slots_per_node < 1:
        raise ProblemError(f"{slots_per_node} slots of a node: expected at least 1")
    num_slots = num_nodes * slots_per_node
    _check_machine(num_slots, turnover_s)
    fitting, notes = _fitting(jobs, num_slots)
    if not fitting:
        raise LogError(f"{name}: no job in it that ran on a machine of {num_nodes} nodes")
    num_starts = sum(job.nodes for job in fitting)
    machine = MachineOccupancy(num_slots, placement, turnover_s, num_starts, slots_per_node)
    start_s, end_s, delay_s = place_jobs(fitting, machine, progress)
    notes += [
        _placed(placement, slots_per_node),
        *_delayed(delay_s, num_nodes),
        "the gap between two jobs on a node counts as idle"
        if turnover_s == 0.0
        else f"the first {turnover_s:g} s after each job do not count as idle",
    ]
    log = machine.hole_log(name, duration_s=float(end_s.max()))
    if maintenance == "cut":
        nodes = np.array([job.nodes for job in fitting])
        log, cuts = without_maintenance(log, maintenance_stretches(start_s, end_s, nodes, num_slots))
        notes += cuts
    return replace(log, notes=tuple(notes))


def _placed(placement: Placement, slots_per_node: int) -> str:
    if slots_per_node > 1:
        return (
            f"each job packed on nodes of {slots_per_node} slots: wholly free ones, and the fullest for the rest"
        )
    return f"each job placed on the {'lowest-numbered' if placement == 'first' else 'longest-idle'} free nodes"


def read_swf_holes(
    path: Path,
    nodes: int | None = None,
    procs_per_node: int | None = None,
    placement: Placement = "first",
    easy: bool = False,
    turnover_s: float = 0.0,
    maintenance: Maintenance = "cut",
    progress: Progress | None = None,
) -> HoleLog:
    """The holes of a log in the Standard Workload Format (SWF). Raises `LogError` for a log that cannot be
    read, and `ProblemError` for numbers of nodes or processors that make no machine.

    A job takes ceil(processors / `procs_per_node`) whole nodes from submission + wait for its run time. With
    `easy` the recorded waits are ignored, and jobs start by first come, first served with EASY backfilling
    instead.

    The machine has `nodes` nodes; if that is None, the header's MaxNodes; without it, MaxProcs /
    `procs_per_node`. Some sites count processors in MaxNodes: give `nodes` then. If `procs_per_node` is None, it
    is MaxProcs / the number of nodes, rounded up; without MaxProcs it is 1.

    Jobs that never ran, or whose time or size the log does not tell, are skipped and counted in the notes. So
    are the partial runs of checkpointed jobs, because the log has one more line for the whole job.
    """
    if procs_per_node is not None and procs_per_node < 1:
        raise ProblemError(f"{procs_per_node} processors per node: expected at least 1")
    swf = read_swf(path)
    notes = list(swf.notes)
    if procs_per_node is None:
        procs_per_node, new_notes = _node_size(swf, nodes)
        notes += new_notes
    num_nodes = _machine_size(path, swf, procs_per_node) if nodes is None else nodes
    _check_machine(num_nodes, turnover_s)
    why_skipped = [_why_skipped(job, easy, num_nodes * procs_per_node) for job in swf.jobs]
    ran = [job for job, cause in zip(swf.jobs, why_skipped, strict=True) if cause is None]
    notes += _skipped(why_skipped)
    if easy:
        started, new_notes = _scheduled(ran, procs_per_node, num_nodes, _part(progress, 0.0, 0.5))
        notes += new_notes
    else:
        started = [_started(job, procs_per_node) for job in ran]
    log = holes_of_jobs(
        path.name,
        started,
        num_nodes,
        placement=placement,
        turnover_s=turnover_s,
        maintenance=maintenance,
        progress=_part(progress, 0.5, 0.5) if easy else progress,
    )
    return replace(log, notes=tuple(sorted((*notes, *log.notes), key=lambda note: not note.startswith(_DOUBT))))


def _delayed(delay_s: NDArray[np.float64], num_nodes: int) -> list[str]:
    delayed_s = delay_s[delay_s > 0]
    if not len(delayed_s):
        return []
    note = (
        "jobs started later than recorded, because fewer nodes were free than they needed: "
        f"{len(delayed_s)}, by {delayed_s.mean():.0f} s on average and {delayed_s.max():.0f} s at most"
    )
    if delay_s.mean() <= _LONG_S:
        return [note]
    return [
        _doubt(f"all jobs would start {delay_s.mean():,.0f} s later than recorded on average", num_nodes),
        note,
    ]


def _doubt(what: str, num_nodes: int) -> str:
    return (
        f"{_DOUBT}{what}; is the machine larger than {num_nodes:,} nodes (--nodes), or has a node more processors "
        "(--procs-per-node)?"
    )


def _skipped(causes: Iterable[str | None]) -> list[str]:
    """Notes that count skipped jobs by cause; `causes` has one element for each job, None for a job that is
    used."""
    return [f"jobs skipped, {cause}: {count}" for cause, count in Counter(causes).items() if cause]


def _fitting(jobs: Sequence[StartedJob], num_nodes: int) -> tuple[list[StartedJob], list[str]]:
    """(jobs that take node-time and fit the machine, in order of start; notes on the others)."""
    why_skipped = [_why_not_placed(job, num_nodes) for job in jobs]
    placed = [job for job, cause in zip(jobs, why_skipped, strict=True) if cause is None]
    return sorted(placed, key=lambda job: job.start_s), _skipped(why_skipped)


def _why_not_placed(job: StartedJob, num_nodes: int) -> str | None:
    if job.nodes < 1 or not -math.inf < job.start_s <= job.end_s < math.inf:
        raise ProblemError(
            f"job {job.id} on {job.nodes} nodes from {job.start_s} s to {job.end_s} s: expected at least one node "
            "and no end before the start"
        )
    if job.nodes > num_nodes:
        return f"larger than the machine's {num_nodes} nodes"
    return "run time 0" if job.start_s == job.end_s else None


def _check_machine(num_nodes: int, turnover_s: float) -> None:
    if not 1 <= num_nodes <= _MOST_NODES:
        raise ProblemError(f"a machine of {num_nodes} nodes: expected from 1 to {_MOST_NODES:,}")
    if not 0.0 <= turnover_s < math.inf:
        raise ProblemError(f"a turnover time of {turnover_s} s: expected 0 or more")


def _machine_size(path: Path, log: SwfLog, procs_per_node: int) -> int:
    num_nodes = log.max_nodes or math.ceil((log.max_procs or 0) / procs_per_node)
    if not 1 <= num_nodes <= _MOST_NODES:
        fields = " and ".join(f"{key} is {log.header.get(key, 'missing')!r}" for key in ("MaxNodes", "MaxProcs"))
        raise LogError(
            f"{path}: in the header {fields}: expected one of them with a number that makes from 1 to "
            f"{_MOST_NODES:,} nodes; give the number of nodes (--nodes)"
        )
    return num_nodes


def _node_size(log: SwfLog, nodes: int | None) -> tuple[int, list[str]]:
    """(processors of a node by the log's header, 1 where it does not tell; notes on that). `nodes`: the number of
    nodes that was given."""
    num_nodes = log.max_nodes or nodes
    if log.max_procs is None or num_nodes is None or log.max_procs <= num_nodes:
        return 1, []
    per_node = math.ceil(log.max_procs / num_nodes)
    note = f"processors of a node: {per_node:,}, as {log.max_procs:,} on {num_nodes:,} nodes"
    if max((job.procs or 0 for job in log.jobs), default=0) <= num_nodes:
        note += f"; no job has more than {num_nodes:,}: if the log counts nodes, give --procs-per-node 1"
    return per_node, [note]


def _why_skipped(job: Job, easy: bool, max_procs: int) -> str | None:
    if job.status in _PARTS:
        return "a part of one that the log lists as a whole"
    if not job.run_s and job.status is SwfStatus.CANCELLED:
        return "cancelled before the start"
    if job.run_s is None:
        return "run time unknown"
    if job.run_s == 0:
        return "run time 0"
    if job.wait_s is None and not easy:
        return "start unknown"
    if job.procs is None:
        return "size unknown"
    return f"larger than the machine's {max_procs} processors" if job.procs > max_procs else None


def _scheduled(
    jobs: Sequence[Job], procs_per_node: int, num_nodes: int, progress: Progress | None
) -> tuple[list[StartedJob], list[str]]:
    submitted = [_submitted(job, procs_per_node) for job in jobs]
    started = easy_schedule(submitted, num_nodes, progress)
    wait_s = sum(job.start_s for job in started) - sum(job.submit_s for job in submitted)
    mean_wait_s = wait_s / max(1, len(started))
    notes = [f"recorded waits ignored: FCFS and EASY backfilling, mean wait {mean_wait_s:,.0f} s"]
    recorded_s = [job.wait_s for job in jobs if job.wait_s is not None]
    mean_recorded_s = sum(recorded_s) / max(1, len(recorded_s))
    if recorded_s and mean_wait_s > max(_LONG_S, _WAITS_LONGER * mean_recorded_s):
        note = f"jobs would wait {mean_wait_s:,.0f} s on average, in the log {mean_recorded_s:,.0f} s"
        notes.insert(0, _doubt(note, num_nodes))
    return started, notes


def _submitted(job: Job, procs_per_node: int) -> SubmittedJob:
    assert job.run_s
    assert job.procs
    nodes = math.ceil(job.procs / procs_per_node)
    return SubmittedJob(str(job.id), job.submit_s, job.run_s, nodes, job.requested_s or job.run_s)


def _started(job: Job, procs_per_node: int) -> StartedJob:
    assert job.start_s is not None
    assert job.end_s is not None
    assert job.procs
    return StartedJob(str(job.id), job.start_s, job.end_s, math.ceil(job.procs / procs_per_node))


def _part(progress: Progress | None, begin: float, length: float) -> Progress | None:
    """A progress function for one part of the work: it maps the part's share from 0 to 1 onto the range from
    `begin` to `begin + length` of `progress`. None without a `progress`."""
    return (lambda share: progress(begin + length * share)) if progress else None
