"""Nodes as pools: what makes nodes alike, and how long a pool is expected to last."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cells import each
from oakum_solver.pools import Pool, Pools, pools_of
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms

CURVE = Curve(((1, 1.0),))
ALL = Terms()
ONLY_HORIZONS = Terms(departures=False)
ONLY_DEPARTURES = Terms(horizons=False)
FACTS = (
    NodeGroup(("n1", "n2"), owner="a", horizon_s=600.0, cohort="x"),
    NodeGroup(("n3",), owner="b", horizon_s=300.0, cohort="x"),
    NodeGroup(("n4",), horizon_s=300.0, cohort="y"),
    NodeGroup(("n5",), horizon_s=300.0),
    NodeGroup(("n6",), owner="a", horizon_s=300.0, node_type="gpu", cohort="x"),
)


def pools(groups: tuple[NodeGroup, ...], terms: Terms = ALL) -> Pools:
    return pools_of(Problem((PlannedTrainer("a", CURVE), PlannedTrainer("b", CURVE)), groups, terms=terms))


def test_a_cohort_is_one_pool_for_each_type_whoever_holds_it_and_lasts_as_long_as_its_first_node() -> None:
    assert pools(FACTS) == Pools(
        pools=(Pool("cpu", 3, 300.0), Pool("cpu", 1, 300.0), Pool("cpu", 1, 300.0), Pool("gpu", 1, 300.0)),
        held=({0: 2, 3: 1}, {0: 1}),
        free=(0, 1, 1, 0),
        of_group=(0, 0, 1, 2, 3),
    )
    assert pools(FACTS, ONLY_DEPARTURES) == pools(FACTS)


@pytest.mark.parametrize("horizons_s", [(300.0, 600.0), (600.0, 300.0)])
def test_a_cohort_leaves_with_the_first_of_its_groups(horizons_s: tuple[float, float]) -> None:
    groups = tuple(NodeGroup((f"n{h}",), horizon_s=h, cohort="x") for h in horizons_s)
    assert pools(groups).pools == (Pool("cpu", 2, 300.0),)


def test_where_departures_do_not_count_nodes_of_one_horizon_are_alike() -> None:
    assert pools(FACTS, ONLY_HORIZONS) == Pools(
        pools=(Pool("cpu", 2, 600.0), Pool("cpu", 3, 300.0), Pool("gpu", 1, 300.0)),
        held=({0: 2, 2: 1}, {1: 1}),
        free=(0, 2, 0),
        of_group=(0, 1, 1, 1, 2),
    )


def test_the_published_objective_knows_types_only() -> None:
    assert pools(FACTS, PUBLISHED) == Pools(
        pools=(Pool("cpu", 5, math.inf), Pool("gpu", 1, math.inf)),
        held=({0: 2, 1: 1}, {0: 1}),
        free=(2, 0),
        of_group=(0, 0, 0, 0, 1),
    )


def test_nodes_of_no_cohort_and_one_horizon_are_alike() -> None:
    groups = (
        NodeGroup(("n1",), horizon_s=60.0),
        NodeGroup(("n2",), "a", 60.0),
        NodeGroup(("n3",), horizon_s=61.0),
    )
    assert pools(groups).of_group == (0, 0, 1)


def test_a_group_without_nodes_is_held_by_nobody() -> None:
    assert pools((NodeGroup((), owner="a"),)) == Pools((Pool("cpu", 0, math.inf),), ({}, {}), (0,), (0,))


def test_a_hole_that_never_ends_lasts_for_the_look_ahead() -> None:
    pool = Pool("cpu", 1, math.inf)
    assert (pool.productive_s(120.0), pool.productive_s(120.0, 20.0), pool.leaving(120.0)) == (120.0, 100.0, 0.0)


def test_a_hole_that_is_over_is_worth_nothing() -> None:
    pool = Pool("cpu", 1, 0.0)
    assert (pool.productive_s(120.0), pool.productive_s(120.0, 20.0), pool.leaving(120.0)) == (0.0, 0.0, 1.0)


def test_a_hole_with_a_mean_ends_within_it_with_the_exponentials_chance() -> None:
    pool = Pool("cpu", 1, 100.0)
    assert pool.productive_s(100.0) == pytest.approx(100 * (1 - 1 / math.e))
    assert pool.productive_s(100.0, 50.0) == pytest.approx(100 * (math.exp(-0.5) - math.exp(-1)))
    assert pool.leaving(100.0) == pytest.approx(1 - 1 / math.e)


@each("horizon_s", [0.0, 50.0, math.inf])
def test_who_starts_up_beyond_the_look_ahead_makes_nothing(horizon_s: float) -> None:
    assert Pool("cpu", 1, horizon_s).productive_s(120.0, 120.0) == 0.0
    assert Pool("cpu", 1, horizon_s).productive_s(120.0, 500.0) == 0.0


@given(st.floats(0.5, 1e5), st.floats(0, 1000), st.floats(0, 1000))
def test_productive_seconds_are_the_sum_over_time_of_the_chance_to_be_there(
    horizon_s: float, look_ahead_s: float, from_s: float
) -> None:
    pool, span_s, steps = Pool("cpu", 1, horizon_s), max(0.0, look_ahead_s - from_s), 2000
    there_s = (
        sum(math.exp(-(from_s + span_s * (i + 0.5) / steps) / horizon_s) for i in range(steps)) * span_s / steps
    )
    step = span_s / steps / horizon_s
    assert pool.productive_s(look_ahead_s, from_s) == pytest.approx(there_s, rel=1e-6 + step**2, abs=1e-9)


@given(st.floats(0.5, 1e18), st.floats(0, 1000))
def test_longer_holes_are_worth_more_and_leave_less(horizon_s: float, look_ahead_s: float) -> None:
    pool, longer = Pool("cpu", 1, horizon_s), Pool("cpu", 1, horizon_s * 1.5)
    assert 0 <= pool.productive_s(look_ahead_s) <= longer.productive_s(look_ahead_s) * (1 + 1e-9) + 1e-12
    assert longer.productive_s(look_ahead_s) <= look_ahead_s * (1 + 1e-9) + 1e-12
    assert 1 >= pool.leaving(look_ahead_s) >= longer.leaving(look_ahead_s) >= 0
