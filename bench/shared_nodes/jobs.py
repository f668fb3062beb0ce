"""Foreground jobs of some GPUs on some nodes."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

from slurm_site import SlurmSite

_START_TIMEOUT_S = 300.0
_MOST_NODES = 3
MEMORY_MB = 1000
"""Of each core that a job asks for."""


@dataclass(frozen=True)
class Arrival:
    """A foreground job to be submitted."""

    gap_s: float
    """Seconds after the job before."""
    nodes: int
    gpus: int
    """On each of its nodes."""
    run_s: float


def draw(seed: int, count: int, nodes: int, gpus: int, gap_s: float, run_s: float) -> list[Arrival]:
    """Draw foreground jobs of one to three nodes and one GPU to all of each: one every `gap_s` seconds on average,
    for `run_s` seconds on average."""
    chance = random.Random(seed)
    return [
        Arrival(
            gap_s * chance.uniform(0.5, 1.5),
            chance.randint(1, min(_MOST_NODES, nodes)),
            chance.randint(1, gpus),
            run_s * chance.uniform(0.5, 1.5),
        )
        for _ in range(count)
    ]


@dataclass(frozen=True)
class Submitted:
    """A foreground job that Slurm has taken."""

    id: str
    arrival: Arrival
    at: float
    note: Path
    """Into which it writes when its first line runs."""


class Foreground:
    """Submits the foreground jobs and reads when they started and ended."""

    def __init__(self, site: SlurmSite, folder: Path) -> None:
        self._site = site
        self._folder = folder
        self.submitted: list[Submitted] = []

    def submit(self, arrival: Arrival) -> None:
        """Submit one job, which shares its nodes."""
        note = self._folder / f"start-{len(self.submitted)}"
        script = f"#!/bin/sh\ndate +%s.%N > {note}\nexec sleep {arrival.run_s:.2f}\n"
        share = (
            f"--gres=gpu:{arrival.gpus}",
            f"--cpus-per-task={arrival.gpus}",
            f"--mem={MEMORY_MB * arrival.gpus}",
        )
        options = ("--partition=main", f"--nodes={arrival.nodes}", "--time=10", "--output=/dev/null")
        at = time.time()
        told = self._site.run("sbatch", "--parsable", "--chdir=/", *options, *share, given=script)
        self.submitted.append(Submitted(told.strip().partition(";")[0], arrival, at, note))

    def waits_s(self) -> list[float]:
        """How many seconds each job has waited for its start, in the order of submission. Returns once all have
        started."""
        self._site.wait_until("every job has started", self._all_started, _START_TIMEOUT_S)
        return [float(job.note.read_text(encoding="utf-8")) - job.at for job in self.submitted]

    def _all_started(self) -> bool:
        return all(job.note.exists() and job.note.stat().st_size for job in self.submitted)

    def wait_for_ends(self) -> None:
        """Return once none of the jobs is in the queue any more."""
        ids = {job.id for job in self.submitted}
        self._site.wait_until(
            "every job has ended", lambda: ids.isdisjoint(job.id for job in self._site.jobs()), _START_TIMEOUT_S
        )

    def gpu_s(self, begin: float, end: float) -> float:
        """GPU-seconds that the jobs, which have ended, had from `begin` to `end` (Unix seconds), by `sacct`, in
        whole seconds of Slurm's."""
        rows = {job.id: self._site.wait_for_sacct(job.id) for job in self.submitted}
        return sum(
            job.arrival.nodes * job.arrival.gpus * _overlap_s(rows[job.id].start, rows[job.id].end, begin, end)
            for job in self.submitted
        )


def _overlap_s(start: float | None, ended: float | None, begin: float, end: float) -> float:
    return 0.0 if start is None else max(0.0, min(ended or end, end) - max(start, begin))
