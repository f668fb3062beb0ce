"""The embedded cluster's foreground jobs: drawn from a workload model, or read from an SWF log, in compressed
time."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from oakum_service.config import LocalClusterSettings
from oakum_solver.logs.lublin import lublin_jobs
from oakum_solver.logs.swf import read_swf

_log = logging.getLogger("oakum.local")
_SAMPLE = 2000
_LONGEST_GAP_S = 25.0


@dataclass(frozen=True)
class ForegroundRequest:
    """A job as a user of the cluster submits it. Seconds are real seconds; `gap_s` is the time since the job
    before."""

    id: str
    gap_s: float
    nodes: int
    run_s: float
    requested_s: float


def foreground_jobs(settings: LocalClusterSettings) -> Iterator[ForegroundRequest]:
    """The stream of foreground jobs for these settings; equal settings give equal streams.

    The model is Lublin and Feitelson's (JPDC 63(11), 2003). Its compressed run times are clipped to the settings'
    shortest and longest. Then the gaps between arrivals are scaled so that the jobs ask for the share `load` of
    all node-time. A log keeps its own arrivals, except that long gaps are cut short. Raises `LogError` for a log
    that cannot be read.
    """
    if settings.swf is not None:
        return _from_log(settings)
    if settings.load == 0:
        return iter(())
    return _from_model(settings)


def _from_model(settings: LocalClusterSettings) -> Iterator[ForegroundRequest]:
    def compressed() -> Iterator[ForegroundRequest]:
        arrived_s = 0.0
        for job in lublin_jobs(settings.num_slots, settings.seed):
            gap_s, arrived_s = (job.submit_s - arrived_s) / settings.time_compression, job.submit_s
            run_s = _clip(job.run_s / settings.time_compression, settings)
            yield ForegroundRequest(
                f"fg-{job.id}", gap_s, job.nodes, run_s, requested_s=run_s * job.requested_s / max(job.run_s, 1e-9)
            )

    stretch, longest_gap_s = _stretch(list(itertools.islice(compressed(), _SAMPLE)), settings)
    for job in compressed():
        yield ForegroundRequest(
            job.id, min(job.gap_s * stretch, longest_gap_s), job.nodes, job.run_s, job.requested_s
        )


def _stretch(sample: list[ForegroundRequest], settings: LocalClusterSettings) -> tuple[float, float]:
    """Factor on the gaps with which the sample asks for the wanted load, and the length in seconds to which
    long gaps are cut."""
    work_node_s = sum(job.nodes * job.run_s for job in sample)
    wanted_s = work_node_s / (settings.load * settings.num_slots)
    # A light load on a few nodes has gaps that are long on average.
    longest_gap_s = max(_LONGEST_GAP_S, 1.5 * wanted_s / len(sample))
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = math.sqrt(low * high)
        total_s = sum(min(job.gap_s * middle, longest_gap_s) for job in sample)
        low, high = (middle, high) if total_s < wanted_s else (low, middle)
    return math.sqrt(low * high), longest_gap_s


def _from_log(settings: LocalClusterSettings) -> Iterator[ForegroundRequest]:
    assert settings.swf is not None
    log = read_swf(settings.swf)
    for note in log.notes:
        _log.warning("%s: %s", settings.swf, note)
    usable = [job for job in log.jobs if job.run_s and job.procs]
    procs = log.max_procs or max((job.procs or 1 for job in usable), default=1)
    arrived_s = 0.0
    for job in sorted(usable, key=lambda job: job.submit_s):
        gap_s, arrived_s = (job.submit_s - arrived_s) / settings.time_compression, job.submit_s
        run_s = _clip((job.run_s or 0.0) / settings.time_compression, settings)
        nodes = max(1, min(settings.num_slots, round((job.procs or 1) * settings.num_slots / procs)))
        requested_s = max(run_s, (job.requested_s or 0.0) / settings.time_compression)
        yield ForegroundRequest(f"swf-{job.id}", min(gap_s, _LONGEST_GAP_S), nodes, run_s, requested_s)


def _clip(run_s: float, settings: LocalClusterSettings) -> float:
    return min(max(run_s, settings.shortest_job_s), settings.longest_job_s)


def skip(jobs: Iterable[ForegroundRequest], count: int) -> Iterator[ForegroundRequest]:
    """The stream without its first `count` jobs."""
    return itertools.islice(jobs, count, None)
