"""Quantiles of delays are nearest ranks: the delay that the share of all jobs did not exceed."""

from __future__ import annotations

from cells import each
from oakum_service.control.delays import quantile


@each(
    ("num_jobs", "q", "rank"),
    [(30, 0.5, 15), (31, 0.5, 16), (100, 0.99, 99), (101, 0.99, 100), (10, 0.99, 10), (1, 0.5, 1)],
)
def test_a_quantile_is_a_delay_that_the_share_does_not_exceed(num_jobs: int, q: float, rank: int) -> None:
    assert quantile([0.1 * number for number in range(1, num_jobs + 1)], q) == 0.1 * rank


def test_without_jobs_there_is_no_quantile() -> None:
    assert quantile([], 0.5) is None
