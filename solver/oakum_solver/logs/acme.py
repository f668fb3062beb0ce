"""Reads the logs of jobs of Shanghai AI Lab's clusters Seren and Kalos (github.com/InternLM/AcmeTrace).

The files `trace_seren.csv` and `trace_kalos.csv` have a row for each job, with the number of its GPUs and when it
began and ended, but not where it ran: it is placed on nodes of 8 GPUs.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from oakum_solver.errors import LogError
from oakum_solver.logs.files import open_log
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.jobs import StartedJob
from oakum_solver.logs.machine import Progress
from oakum_solver.logs.placement import Maintenance, holes_of_jobs

_COLUMNS = ("job_id", "gpu_num", "start_time", "end_time")
GPUS_OF_A_NODE = 8
_MOST_SKIPPED = 0.1
"""Share of rows that may be odd: with more of them the file is another one."""
_UNREADABLE = "jobs skipped that cannot be read"


def is_acme(header: str) -> bool:
    """Whether a file with this first line is such a log."""
    return {*_COLUMNS} <= {name.strip() for name in header.split(",")}


def read_acme(
    path: Path,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    turnover_s: float = 0.0,
    maintenance: Maintenance = "cut",
    progress: Progress | None = None,
) -> HoleLog:
    """The holes of the GPUs, which are the slots of their nodes. Each job takes whole nodes, and of the fullest
    node with room what is left over. Without `nodes` the machine has as many as jobs' GPUs filled at once.

    Jobs without GPUs are left out. Raises `LogError` for another file, and `ProblemError` for an impossible
    machine.
    """
    jobs, odd = _jobs(path)
    per_node = GPUS_OF_A_NODE if gpus_per_node is None else gpus_per_node
    notes = [f"{what}: {count:,}" for what, count in odd.items() if count]
    if nodes is None:
        nodes = math.ceil(_most_at_once(jobs) / per_node)
        notes.append(
            f"the log does not tell the machine's size: {nodes:,} nodes of {per_node} GPUs, as jobs filled at "
            "once; if it has more, give --nodes"
        )
    fitting = [job for job in jobs if job.nodes <= nodes * per_node]
    if larger := len(jobs) - len(fitting):
        notes.append(f"jobs skipped, larger than the machine's {nodes * per_node:,} GPUs: {larger:,}")
    log = holes_of_jobs(
        path.name,
        fitting,
        nodes,
        slots_per_node=per_node,
        turnover_s=turnover_s,
        maintenance=maintenance,
        progress=progress,
    )
    return log.noted(f"the log of jobs of Seren or Kalos: {len(fitting):,} jobs with GPUs", *notes)


def _jobs(path: Path) -> tuple[list[StartedJob], Counter[str]]:
    """The jobs with GPUs, whose sizes are in GPUs; what was skipped, and how often."""
    jobs: list[StartedJob] = []
    odd: Counter[str] = Counter()
    with open_log(path) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", errors="replace"))
        total = 0
        for row in rows:
            total += 1
            try:
                gpus = math.ceil(float(row["gpu_num"] or 0))
                began, ended = row["start_time"], row["end_time"]
                if not gpus:
                    odd["jobs skipped without GPUs"] += 1
                elif not began or not ended:
                    odd["jobs skipped that never began, or whose end is not told"] += 1
                elif (end_s := _seconds(ended)) < (start_s := _seconds(began)):
                    odd["jobs skipped that end before they start"] += 1
                else:
                    jobs.append(StartedJob(row["job_id"], start_s, end_s, gpus))
            except (KeyError, TypeError, ValueError, OverflowError):
                odd[_UNREADABLE] += 1
    if not jobs or odd[_UNREADABLE] > _MOST_SKIPPED * total:
        raise LogError(
            f"{path}: {total - len(jobs):,} of {total:,} rows are no job with GPUs: expected rows with "
            f"{', '.join(_COLUMNS)} as in trace_seren.csv"
        )
    return jobs, odd


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _most_at_once(jobs: list[StartedJob]) -> int:
    times_s = np.array([time_s for job in jobs for time_s in (job.end_s, job.start_s)])
    change = np.array([change for job in jobs for change in (-job.nodes, job.nodes)])
    # At one time, jobs end before others start.
    return int(np.cumsum(change[np.lexsort((change, times_s))]).max())
