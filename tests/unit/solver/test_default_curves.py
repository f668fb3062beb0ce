"""Curves where nobody measured one."""

import pytest

from oakum_solver.curves import curve_from_points, linear_curve
from oakum_solver.errors import ProblemError


def test_a_linear_curve_gives_one_sample_per_node_and_second() -> None:
    assert [linear_curve(3).rate(nodes) for nodes in (0, 1, 2, 3, 4)] == [0.0, 1.0, 2.0, 3.0, 3.0]


def test_given_points_are_sorted() -> None:
    assert curve_from_points([(4, 30), (1, 10)], max_nodes=8).points == ((1, 10.0), (4, 30.0))


def test_no_points_mean_a_linear_curve() -> None:
    assert curve_from_points([], max_nodes=8) == linear_curve(8)


def test_points_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ProblemError, match="falls"):
        curve_from_points([(1, 10), (1, 12)], max_nodes=8)
