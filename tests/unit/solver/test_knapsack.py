"""The knapsack over sizes, on tables small enough to do by hand."""

import math

import numpy as np
import pytest

from cells import each
from oakum_solver import knapsack
from oakum_solver.knapsack import Floats, exact, fill, proves_optimal, relax, total

NEVER = -math.inf
TRAP = np.array(
    [
        [0.0, 31 / 3, 62 / 3, 31.0, 31.0, 31.0],
        [0.0, 0.0, 0.0, 0.0, 40.0, 41.0],
        [0.0, 5.0, 10.0, 10.0, 10.0, 10.0],
    ]
)
"""Five nodes: the best value per node is the first's, which leaves two for the last: 41. The best is 1, 4, 0."""


def sizes(*nodes: int) -> knapsack.Sizes:
    return np.array(nodes, dtype=np.int64)


def test_the_relaxations_bound_is_the_lowest_over_all_prices() -> None:
    values = np.array([[0.0, 10.0, 12.0], [0.0, 7.0, 14.0]])
    found = relax(values, 2)
    assert found is not None
    assert (found.price, found.bound) == (7.0, 2 * 7 + 3 + 0)
    assert (found.sizes.tolist(), found.best.tolist()) == ([1, 0], [3.0, 0.0])


def test_nodes_that_are_left_over_cost_nothing() -> None:
    found = relax(np.array([[0.0, 5.0, 5.0], [0.0, 3.0, 1.0]]), 4)
    assert found is not None
    assert (found.price, found.bound, found.sizes.tolist()) == (0.0, 8.0, [1, 1])


def test_smallest_choices_that_do_not_fit_have_no_relaxation() -> None:
    demanding = np.array([[NEVER, NEVER, 5.0], [NEVER, 1.0, 2.0]])
    assert relax(demanding, 2) is None
    found = relax(demanding, 3)
    assert found is not None
    assert found.sizes.tolist() == [2, 1]


def test_choices_may_weigh_other_than_their_number_of_nodes() -> None:
    values, weights = np.array([[0.0, 6.0, 8.0]]), np.array([[0.0, 1.5, 2.5]])
    found = relax(values, 2.0, weights)
    assert found is not None
    assert found.price == pytest.approx(2.0)
    assert found.bound == pytest.approx(2 * 2 + (6 - 2 * 1.5))
    assert found.sizes.tolist() == [1]


def test_filling_jumps_over_a_dent_of_the_curve() -> None:
    assert fill(np.array([[0.0, -5.0, -1.0, 6.0]]), sizes(0), 3).tolist() == [3]


def test_filling_does_not_jump_where_the_nodes_do_not_reach() -> None:
    assert fill(np.array([[0.0, -5.0, -1.0, 6.0]]), sizes(0), 2).tolist() == [0]


def test_filling_never_lands_on_a_size_that_is_not_allowed() -> None:
    assert fill(np.array([[0.0, NEVER, NEVER, 6.0], [0.0, 1.0, 2.0, 3.0]]), sizes(0, 0), 4).tolist() == [3, 1]


def test_filling_stops_where_nothing_gains() -> None:
    assert fill(np.array([[0.0, 4.0, 4.0, 3.0]]), sizes(0), 3).tolist() == [1]


def test_filling_leaves_the_sizes_that_it_was_given() -> None:
    given = sizes(0)
    fill(np.array([[0.0, 1.0]]), given, 1)
    assert given.tolist() == [0]


def test_the_dynamic_program_finds_what_filling_misses() -> None:
    found = relax(TRAP, 5)
    assert found is not None
    greedy = fill(TRAP, found.sizes, 5)
    assert total(TRAP, greedy) == 41.0
    best = exact(TRAP, 5, greedy, found)
    assert best is not None
    assert (best.tolist(), total(TRAP, best)) == ([1, 4, 0], 31 / 3 + 40)


def test_a_dynamic_program_that_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knapsack, "_MOST_WORK", 1)
    found = relax(TRAP, 5)
    assert found is not None
    assert exact(TRAP, 5, fill(TRAP, found.sizes, 5), found) is None


@pytest.mark.parametrize("values", [np.zeros((0, 1)), np.zeros((2, 1))], ids=["no trainer", "no node"])
def test_nothing_to_decide_is_decided(values: Floats) -> None:
    found = relax(values, 0)
    assert found is not None
    assert (found.bound, found.sizes.tolist()) == (0.0, [0] * len(values))
    assert fill(values, found.sizes, 0).tolist() == [0] * len(values)


@each(
    ("bound", "value", "proven"),
    [
        (0.0, 0.0, True),
        (1e12, 1e12 - 1.0, True),
        (1e12, 1e12 - 1e6, False),
        (1e-9, 0.0, False),
        (5.0, 6.0, True),
        (-1.0, -1.0 - 1e-6, False),
        (math.inf, 5.0, False),
    ],
)
def test_only_a_bound_within_rounding_proves_a_value_optimal(bound: float, value: float, proven: bool) -> None:
    assert proves_optimal(bound, value) == proven
