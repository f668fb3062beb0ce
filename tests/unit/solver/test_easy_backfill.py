"""FCFS with EASY backfilling, case by case."""

import math

from oakum_solver.logs.easy import Backfill, QueuedJob, RunningJob, easy_backfill

NOW_S = 1000.0


def queued(id_: str, nodes: int, requested_s: float = 100.0) -> QueuedJob:
    return QueuedJob(id_, nodes, requested_s)


def test_jobs_start_in_order_while_they_fit() -> None:
    assert easy_backfill(NOW_S, 4, [queued("a", 2), queued("b", 2)], []) == Backfill(("a", "b"))


def test_an_empty_queue_starts_nothing() -> None:
    assert easy_backfill(NOW_S, 4, [], []) == Backfill(())


def test_the_head_waits_for_the_first_ends_that_free_enough() -> None:
    running = [RunningJob(1, 1300.0), RunningJob(2, 1200.0), RunningJob(3, 1900.0)]
    assert easy_backfill(NOW_S, 1, [queued("a", 4)], running) == Backfill((), "a", 1300.0, 0)


def test_a_short_job_slips_in_before_the_head() -> None:
    plan = easy_backfill(NOW_S, 2, [queued("a", 4), queued("b", 2, 200.0)], [RunningJob(2, 1200.0)])
    assert plan == Backfill(("b",), "a", 1200.0, 0)


def test_a_long_job_may_not_delay_the_head() -> None:
    plan = easy_backfill(NOW_S, 2, [queued("a", 4), queued("b", 2, 201.0)], [RunningJob(2, 1200.0)])
    assert plan == Backfill((), "a", 1200.0, 0)


def test_long_jobs_share_the_nodes_that_the_head_leaves_over() -> None:
    queue = [queued("a", 4), queued("b", 1, 9e9), queued("c", 1, 9e9)]
    plan = easy_backfill(NOW_S, 2, queue, [RunningJob(3, 1200.0)])
    assert plan == Backfill(("b",), "a", 1200.0, 0)


def test_jobs_that_end_together_with_the_one_awaited_leave_their_nodes_over_too() -> None:
    running = [RunningJob(2, 1200.0), RunningJob(2, 1200.0)]
    assert easy_backfill(NOW_S, 1, [queued("a", 3)], running) == Backfill((), "a", 1200.0, 2)


def test_a_job_just_started_counts_as_running() -> None:
    plan = easy_backfill(NOW_S, 4, [queued("a", 3, 50.0), queued("b", 4)], [])
    assert plan == Backfill(("a",), "b", 1050.0, 0)


def test_an_overdue_job_is_expected_to_end_now() -> None:
    plan = easy_backfill(NOW_S, 1, [queued("a", 2), queued("b", 1, 1.0)], [RunningJob(1, 900.0)])
    assert plan == Backfill((), "a", NOW_S, 0)


def test_a_head_that_never_fits_stands_in_nobodys_way() -> None:
    plan = easy_backfill(NOW_S, 2, [queued("a", 9), queued("b", 2, 9e9)], [])
    assert plan == Backfill(("b",), "a", math.inf, 0)
