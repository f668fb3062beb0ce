"""What trainers would achieve if rescaling were free: against brute force, and by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakum_solver.replay.ideal import Floats, best_splits, ideal_achievement

ENDLESS = math.inf
LINEAR = np.array([0.0, 1.0, 2.0, 3.0])
CONCAVE = np.array([0.0, 1.0, 1.5, 1.75])


def split_by_brute_force(values: list[Floats], num_nodes: int) -> float:
    """The worth a second of the best split of at most `num_nodes`."""
    sizes = itertools.product(*(range(len(row)) for row in values))
    return max(
        sum(float(row[size]) for row, size in zip(values, split, strict=True))
        for split in sizes
        if sum(split) <= num_nodes
    )


@st.composite
def tables(draw: st.DrawFn, most_trainers: int = 4) -> list[Floats]:
    """Rates by size, whole numbers so that sums are exact; not rising, and -inf up to some minimum."""
    rows = []
    for _ in range(draw(st.integers(1, most_trainers))):
        row = np.array([0.0, *draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))])
        row[1 : draw(st.integers(1, 3))] = -np.inf
        rows.append(row)
    return rows


def stacked(rows: list[Floats]) -> Floats:
    width = max(len(row) for row in rows)
    return np.array([np.append(row, np.full(width - len(row), -np.inf)) for row in rows])


@given(rows=tables(), num_nodes=st.integers(0, 9))
def test_the_best_split_of_each_number_of_nodes_is_brute_forces(rows: list[Floats], num_nodes: int) -> None:
    splits = best_splits(stacked(rows), num_nodes)
    assert splits.value.tolist() == [split_by_brute_force(rows, nodes) for nodes in range(num_nodes + 1)]


@given(rows=tables(), num_nodes=st.integers(0, 9))
def test_the_sizes_of_a_split_are_worth_what_it_says_and_fit(rows: list[Floats], num_nodes: int) -> None:
    splits = best_splits(stacked(rows), num_nodes)
    for nodes in range(num_nodes + 1):
        sizes = splits.sizes(nodes)
        assert sum(sizes) <= nodes
        worth = sum(float(row[size]) for row, size in zip(rows, sizes, strict=True))
        assert worth == splits.value[nodes]


def test_a_trainer_larger_than_a_short_integer_is_split_for() -> None:
    values = np.arange(40_001, dtype=np.float64)[None, :]
    values[0, 1:40_000] = -np.inf
    assert best_splits(values, 40_000).sizes(40_000) == [40_000]


def test_nobody_splits_into_nothing() -> None:
    splits = best_splits(np.zeros((0, 1)), 3)
    assert (splits.value.tolist(), splits.sizes(3)) == ([0.0] * 4, [])


@given(
    rows=tables(3),
    submits=st.lists(st.integers(0, 12), min_size=3, max_size=3),
    spans=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=4),
)
def test_endless_trainers_achieve_the_best_split_of_every_second(
    rows: list[Floats], submits: list[int], spans: list[tuple[int, int]]
) -> None:
    idle, begin_s, expected = [], 0, 0.0
    for seconds, nodes in spans:
        idle.append((float(begin_s), float(begin_s + seconds), float(nodes)))
        for second in range(begin_s, begin_s + seconds):
            live = [row for row, submit_s in zip(rows, submits, strict=False) if submit_s <= second]
            expected += split_by_brute_force(live, nodes)
        begin_s += seconds
    submit_s = [float(second) for second in submits[: len(rows)]]
    assert ideal_achievement(rows, submit_s, [ENDLESS] * len(rows), idle, 5) == pytest.approx(expected)


def test_between_two_numbers_of_nodes_both_share_the_time() -> None:
    assert ideal_achievement([CONCAVE], [0.0], [ENDLESS], [(0.0, 8.0, 1.25)], 2) == 8 * (0.75 * 1.0 + 0.25 * 1.5)
    assert ideal_achievement([CONCAVE], [0.0], [9.0], [(0.0, 8.0, 1.25)], 2) == 9.0
    assert ideal_achievement([CONCAVE], [0.0], [9.1], [(0.0, 8.0, 1.25)], 2) == pytest.approx(9.0)


def test_finite_trainers_leave_their_nodes_to_the_others() -> None:
    """Three nodes: 2 for the linear one and 1 for the other, whose second node would be worth 0.5 only.

    The linear one ends after 4 / 2 = 2 s, when the other has 2.5; that makes 2 a second from then on.
    """
    values, wanted = [LINEAR, np.array([0.0, 1.25, 1.75, 2.0])], [4.0, 9.0]
    assert ideal_achievement(values, [0.0, 0.0], wanted, [(0.0, 10.0, 3.0)], 3) == pytest.approx(13.0)
    assert ideal_achievement(values, [0.0, 0.0], wanted, [(0.0, 4.0, 3.0)], 3) == pytest.approx(4.0 + 6.5)
    assert ideal_achievement(values, [0.0, 0.0], wanted, [(0.0, 1.0, 3.0)], 3) == pytest.approx(2.0 + 1.25)


def test_a_finite_trainer_ends_across_changes_of_the_idle_nodes() -> None:
    """1 a second to 3 s, 2 a second to 5 s: 7 are reached 2 s later with 0 nodes between."""
    idle = [(0.0, 3.0, 1.0), (3.0, 4.0, 2.0), (4.0, 6.0, 0.0), (6.0, 9.0, 2.0)]
    assert ideal_achievement([LINEAR], [0.0], [7.0], idle, 2) == pytest.approx(7.0)
    assert ideal_achievement([LINEAR], [0.0], [7.0], idle[:3], 2) == pytest.approx(5.0)


def test_trainers_arrive_in_the_middle_of_an_interval() -> None:
    values, idle = [CONCAVE, CONCAVE], [(0.0, 10.0, 2.0)]
    assert ideal_achievement(values, [0.0, 4.0], [ENDLESS] * 2, idle, 2) == pytest.approx(4 * 1.5 + 6 * 2.0)
    assert ideal_achievement(values, [4.0, 4.0], [ENDLESS] * 2, idle, 2) == pytest.approx(6 * 2.0)
    assert ideal_achievement(values, [0.0, 99.0], [ENDLESS] * 2, idle, 2) == pytest.approx(10 * 1.5)


def test_at_most_max_trainers_run_at_once_the_first_submitted_first() -> None:
    """One at a time on two nodes at 2 a second: 4 by 2 s, 6 by 5 s, and the third 2 a second from then on."""
    idle = [(0.0, 10.0, 2.0)]
    submit_s, wanted = [0.5, 0.0, 0.2], [ENDLESS, 4.0, 6.0]
    assert ideal_achievement([LINEAR] * 3, submit_s, wanted, idle, 2, max_trainers=1) == pytest.approx(20.0)
    late = [7.0, 0.0, 0.2]
    assert ideal_achievement([LINEAR] * 3, late, wanted, idle, 2, max_trainers=1) == pytest.approx(10.0 + 6.0)


def test_endless_trainers_keep_their_places() -> None:
    values, idle = [CONCAVE, LINEAR], [(0.0, 10.0, 2.0)]
    assert ideal_achievement(values, [0.0, 0.0], [ENDLESS] * 2, idle, 2, max_trainers=1) == pytest.approx(15.0)


@given(
    rows=tables(3),
    wanted=st.lists(st.one_of(st.just(ENDLESS), st.floats(0.01, 200.0)), min_size=3, max_size=3),
    spans=st.lists(st.tuples(st.floats(0.01, 50.0), st.integers(0, 5)), min_size=1, max_size=4),
    most=st.one_of(st.none(), st.integers(1, 3)),
)
def test_nobody_achieves_more_than_wanted_nor_all_more_than_without_ends(
    rows: list[Floats], wanted: list[float], spans: list[tuple[float, int]], most: int | None
) -> None:
    edges = [0.0, *itertools.accumulate(seconds for seconds, _ in spans)]
    idle = [(a, b, float(n)) for (a, b), (_, n) in zip(itertools.pairwise(edges), spans, strict=True)]
    submit_s = [0.0] * len(rows)
    achieved = ideal_achievement(rows, submit_s, wanted[: len(rows)], idle, 5, most)
    assert 0.0 <= achieved <= sum(wanted[: len(rows)]) * (1 + 1e-9)
    without = ideal_achievement(rows, submit_s, [ENDLESS] * len(rows), idle, 5)
    assert achieved <= without * (1 + 1e-9)
