"""Jobs placed on nodes, rule by rule."""

import math
from typing import Any

import pytest

from cells import each
from oakum_solver.errors import LogError, ProblemError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.jobs import StartedJob
from oakum_solver.logs.placement import holes_of_jobs

HOUR = 3600.0


def job(start_s: float, end_s: float, nodes: int) -> StartedJob:
    return StartedJob(f"{start_s:g}-{end_s:g}", start_s, end_s, nodes)


def holes_log(*jobs: StartedJob, num_nodes: int, **options: Any) -> HoleLog:
    return holes_of_jobs("log.swf", jobs, num_nodes, **options)


def holes(log: HoleLog) -> list[tuple[str, float, float]]:
    """The log's holes as (node, start_s, end_s), sorted."""
    rows = zip(log.node, log.start_s.tolist(), log.end_s.tolist(), strict=True)
    return sorted((log.nodes[node], start_s, end_s) for node, start_s, end_s in rows)


def test_the_log_lasts_from_the_first_start_to_the_last_end() -> None:
    log = holes_log(job(1000, 1020, 1), job(1010, 1100, 1), num_nodes=3)
    assert holes(log) == [("n0", 20.0, 100.0), ("n1", 0.0, 10.0), ("n2", 0.0, 100.0)]
    assert (log.name, log.nodes, log.duration_s, log.cut_s) == ("log.swf", ("n0", "n1", "n2"), 100.0, 0.0)
    assert log.start_s.tolist() == sorted(log.start_s)


def test_a_job_takes_the_lowest_numbered_free_nodes() -> None:
    log = holes_log(job(0, 20, 1), job(0, 10, 1), job(30, 40, 1), num_nodes=2)
    assert holes(log) == [("n0", 20.0, 30.0), ("n1", 10.0, 40.0)]
    assert log.notes[0] == "each job placed on the lowest-numbered free nodes"


def test_a_job_takes_the_nodes_free_the_longest_where_asked() -> None:
    log = holes_log(job(0, 20, 1), job(0, 10, 1), job(30, 40, 1), num_nodes=2, placement="fifo")
    assert holes(log) == [("n0", 20.0, 40.0), ("n1", 10.0, 30.0)]
    assert log.notes[0] == "each job placed on the longest-idle free nodes"


def test_of_nodes_free_equally_long_the_lowest_numbered_go_first() -> None:
    log = holes_log(job(0, 20, 1), job(1, 20, 2), job(20, 30, 1), num_nodes=3, placement="fifo")
    assert holes(log) == [("n1", 0.0, 1.0), ("n1", 20.0, 30.0), ("n2", 0.0, 1.0), ("n2", 20.0, 30.0)]


def test_at_one_time_jobs_end_before_others_start() -> None:
    log = holes_log(job(0, 10, 2), job(10, 20, 2), num_nodes=2)
    assert (holes(log), log.duration_s) == ([], 20.0)
    assert not any("later" in note for note in log.notes)


def test_a_start_that_finds_too_few_nodes_is_shifted_and_keeps_its_run_time() -> None:
    log = holes_log(job(0, 10, 2), job(7, 12, 2), num_nodes=2)
    assert (holes(log), log.duration_s) == ([], 15.0)
    assert log.notes[1] == (
        "jobs started later than recorded, because fewer nodes were free than they needed: "
        "1, by 3 s on average and 3 s at most"
    )


def test_a_shifted_job_does_not_hold_up_a_start_that_fits() -> None:
    log = holes_log(job(0, 10, 2), job(5, 15, 3), job(6, 9, 1), num_nodes=3)
    assert holes(log) == [("n2", 0.0, 6.0), ("n2", 9.0, 10.0)]


def test_turnover_belongs_to_no_hole_and_delays_no_job() -> None:
    log = holes_log(job(0, 10, 1), job(12, 20, 1), job(40, 50, 1), num_nodes=1, turnover_s=5.0)
    assert holes(log) == [("n0", 25.0, 40.0)]
    assert log.notes[-1] == "the first 5 s after each job do not count as idle"


def test_without_turnover_the_gap_between_two_jobs_is_a_hole() -> None:
    log = holes_log(job(0, 10, 1), job(12, 20, 1), num_nodes=1)
    assert holes(log) == [("n0", 10.0, 12.0)]
    assert log.notes[-1] == "the gap between two jobs on a node counts as idle"


def test_a_job_larger_than_the_machine_is_skipped_and_counted() -> None:
    log = holes_log(job(0, 10, 1), job(5, 9, 3), num_nodes=2)
    assert holes(log) == [("n1", 0.0, 10.0)]
    assert log.notes[0] == "jobs skipped, larger than the machine's 2 nodes: 1"


def test_maintenance_is_cut_out_of_the_time_axis() -> None:
    busy, after = job(0, HOUR, 40), job(4 * HOUR, 6 * HOUR, 39)
    log = holes_log(busy, after, num_nodes=40)
    assert holes(log) == [("n39", HOUR, 3 * HOUR)]
    assert (log.duration_s, log.cut_s) == (3 * HOUR, 3 * HOUR)
    assert log.notes[-1] == (
        "stretches of maintenance cut out (2 h and more with under 5% of the nodes busy): "
        "1, 3.0 h or 50.0% of the time in all"
    )


def test_a_hole_ends_at_a_cut_and_another_begins() -> None:
    jobs = job(0, HOUR, 39), job(4 * HOUR, 6 * HOUR, 39)
    assert holes(holes_log(*jobs, num_nodes=40)) == [("n39", 0.0, HOUR), ("n39", HOUR, 3 * HOUR)]


def test_jobs_that_run_on_through_maintenance_hold_their_nodes_on_both_sides() -> None:
    jobs = job(0, 6 * HOUR, 1), job(0, HOUR, 39), job(4 * HOUR, 6 * HOUR, 38)
    log = holes_log(*jobs, num_nodes=40)
    assert (holes(log), log.cut_s) == ([("n39", HOUR, 3 * HOUR)], 3 * HOUR)


@each(
    "lull",
    [
        [job(4 * HOUR - 3601, 6 * HOUR, 40)],
        [job(HOUR, 4 * HOUR, 2), job(4 * HOUR, 6 * HOUR, 40)],
        [job(2.5 * HOUR, 2.6 * HOUR, 2), job(4 * HOUR, 6 * HOUR, 40)],
    ],
    ids=["just under 2 h", "5 % busy", "broken by a job"],
)
def test_a_shorter_or_busier_lull_is_idle_time(lull: list[StartedJob]) -> None:
    log = holes_log(job(0, HOUR, 40), *lull, num_nodes=40)
    assert (log.duration_s, log.cut_s) == (6 * HOUR, 0.0)


def test_maintenance_is_kept_where_asked() -> None:
    log = holes_log(job(0, HOUR, 2), job(4 * HOUR, 5 * HOUR, 2), num_nodes=2, maintenance="keep")
    assert holes(log) == [("n0", HOUR, 4 * HOUR), ("n1", HOUR, 4 * HOUR)]


def test_progress_comes_in_hundredths() -> None:
    told: list[float] = []
    holes_log(*(job(start_s, start_s + 1, 1) for start_s in range(1000)), num_nodes=1, progress=told.append)
    assert told == pytest.approx([share / 100 for share in range(1, 101)])


@each("jobs", [[], [job(0, 10, 5)], [job(3, 3, 1)]])
def test_a_log_without_a_job_that_ran_is_refused(jobs: list[StartedJob]) -> None:
    with pytest.raises(LogError, match=r"log\.swf: no job in it that ran on a machine of 2 nodes"):
        holes_log(*jobs, num_nodes=2)


def test_a_log_that_is_all_maintenance_is_refused() -> None:
    with pytest.raises(LogError, match="would be cut out as maintenance"):
        holes_log(job(0, 3 * HOUR, 1), num_nodes=100)


@pytest.mark.parametrize("options", [{"num_nodes": 0}, {"num_nodes": 10**9}])
def test_an_impossible_machine_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match="expected from 1 to 1,000,000"):
        holes_log(job(0, 1, 1), **options)


@each("turnover_s", [-1.0, math.nan, math.inf])
def test_an_impossible_turnover_time_is_refused(turnover_s: float) -> None:
    with pytest.raises(ProblemError, match="turnover time"):
        holes_log(job(0, 1, 1), num_nodes=1, turnover_s=turnover_s)


@each("bad", [job(0, 1, 0), job(2, 1, 1), job(0, math.inf, 1), job(math.nan, 1, 1)])
def test_an_impossible_job_is_refused(bad: StartedJob) -> None:
    with pytest.raises(ProblemError, match=f"job {bad.id} "):
        holes_log(bad, num_nodes=1)
