"""A whole workload started by FCFS and EASY backfilling."""

from pathlib import Path

import pytest

from oakum_solver.errors import ProblemError
from oakum_solver.logs.easy import easy_schedule
from oakum_solver.logs.jobs import StartedJob, SubmittedJob
from oakum_solver.logs.swf import read_swf

SDSC = Path(__file__).resolve().parents[4] / "shared" / "data" / "sdsc-sp2-1998-easy.swf.gz"


def submitted(
    id_: str, submit_s: float, run_s: float, nodes: int, requested_s: float | None = None
) -> SubmittedJob:
    return SubmittedJob(id_, submit_s, run_s, nodes, requested_s or run_s)


def starts(num_nodes: int, *jobs: SubmittedJob) -> dict[str, float]:
    return {job.id: job.start_s for job in easy_schedule(jobs, num_nodes)}


def test_a_job_starts_when_its_nodes_are_free() -> None:
    jobs = [submitted("b", 5, 10, 2), submitted("a", 0, 20, 1)]
    assert easy_schedule(jobs, 2) == [StartedJob("b", 20, 30, 2), StartedJob("a", 0, 20, 1)]


def test_a_short_job_slips_in_and_a_long_one_waits() -> None:
    first, head = submitted("first", 0, 100, 1), submitted("head", 1, 50, 2)
    short, long = submitted("short", 2, 98, 1), submitted("long", 3, 99, 1)
    assert starts(2, first, head, short) == {"first": 0, "head": 100, "short": 2}
    assert starts(2, first, head, long) == {"first": 0, "head": 100, "long": 150}


def test_a_job_past_its_request_stays_until_its_run_time_ends() -> None:
    assert starts(1, submitted("over", 0, 100, 1, requested_s=10), submitted("next", 1, 5, 1)) == {
        "over": 0,
        "next": 100,
    }


def test_a_job_that_ends_early_lets_the_next_start_early() -> None:
    assert starts(1, submitted("early", 0, 10, 1, requested_s=100), submitted("next", 1, 5, 1))["next"] == 10


def test_jobs_with_one_id_are_two() -> None:
    assert [job.start_s for job in easy_schedule([submitted("x", 0, 10, 1), submitted("x", 0, 10, 1)], 1)] == [
        0,
        10,
    ]


def test_a_job_larger_than_the_machine_is_refused() -> None:
    with pytest.raises(ProblemError, match="job large of 3 nodes: expected at most 2"):
        easy_schedule([submitted("large", 0, 10, 3)], 2)


def test_another_simulators_schedule_of_sdsc_is_met() -> None:
    """The log's starts are those of Pyss, whose ties differ; 95 % are the same to the second."""
    if not SDSC.exists():
        pytest.skip(f"needs recordings: there is no {SDSC}")
    jobs = read_swf(SDSC).jobs
    ours = easy_schedule(
        [submitted(str(job.id), job.submit_s, job.run_s or 0, job.procs or 0, job.requested_s) for job in jobs],
        128,
    )
    same = sum(job.start_s == start.start_s for job, start in zip(jobs, ours, strict=True))
    wait_s = sum(start.start_s - job.submit_s for job, start in zip(jobs, ours, strict=True))
    assert same / len(jobs) == pytest.approx(0.95, abs=0.01)
    assert wait_s == pytest.approx(sum(job.wait_s or 0.0 for job in jobs), rel=0.01)
