"""Nodes leave, some of them together: what that costs, and what a plan makes of it."""

import math
from dataclasses import replace

import pytest

from cells import each
from oakum_solver.plan import Plan, Why
from oakum_solver.pools import Composition
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.value import ValueModel

CURVE = Curve(((1, 100.0), (2, 180.0), (4, 300.0)))
LINEAR = Curve(((64, 640.0),))
ELASTIC: tuple[Policy, ...] = ("milp", "greedy")


def trainer(id_: str, curve: Curve = LINEAR, **settings: float) -> PlannedTrainer:
    return PlannedTrainer(id_, curve, **{"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0, **settings})  # type: ignore[arg-type]


def group(nodes: str, horizon_s: float, owner: str | None = None, cohort: str | None = None) -> NodeGroup:
    return NodeGroup(tuple(nodes.split()), owner, horizon_s, cohort=cohort)


def value(problem: Problem, composition: Composition) -> float:
    """Worth of these nodes for the first trainer."""
    return ValueModel(problem).value(0, composition)


def cohorts_of(plan: Plan, problem: Problem, id_: str) -> set[str | None]:
    cohort = {node: group.cohort for group in problem.groups for node in group.nodes}
    return {cohort[node] for node in plan.grant(id_)}


LEAVES = 1 - math.exp(-1)
"""q over 100 s of a cohort with a mean of 100 s."""
TWO_COHORTS = Problem(
    (trainer("a", CURVE, shrink_stall_s=5.0),),
    (group("n1 n2", 100.0, cohort="x"), group("n3 n4", math.inf, cohort="y")),
    look_ahead_s=100.0,
    terms=Terms(horizons=False),
)


def test_each_cohort_in_use_is_expected_to_cost_the_stall_of_its_departure() -> None:
    leaves_y = replace(TWO_COHORTS, groups=(TWO_COHORTS.groups[0], group("n3 n4", 50.0, cohort="y")))
    left_x, left_y = 5 * LEAVES * 100, 5 * (1 - math.exp(-2)) * 180
    assert value(TWO_COHORTS, {0: 2, 1: 1}) == pytest.approx(100 * 240 - left_x)
    assert value(leaves_y, {0: 2, 1: 1}) == pytest.approx(100 * 240 - left_x - left_y)


def test_a_trainer_whose_nodes_leave_together_pays_no_departure() -> None:
    assert value(TWO_COHORTS, {0: 2}) == value(TWO_COHORTS, {1: 2}) == 100 * 180


def test_a_rest_below_the_minimum_has_nothing_left_to_stand_still() -> None:
    asked = replace(TWO_COHORTS, trainers=(replace(TWO_COHORTS.trainers[0], min_nodes=2),))
    assert value(asked, {0: 2, 1: 1}) == pytest.approx(100 * 240)


def test_departures_can_be_left_out() -> None:
    asked = replace(TWO_COHORTS, terms=Terms(horizons=False, departures=False))
    assert value(asked, {0: 3}) == pytest.approx(100 * 240)


def test_nodes_of_two_horizons_are_worth_their_mean() -> None:
    asked = replace(TWO_COHORTS, trainers=(trainer("a", CURVE),), terms=Terms())
    assert value(asked, {0: 1, 1: 2}) == pytest.approx(240 * (100 * LEAVES + 2 * 100) / 3)


def test_given_up_nodes_take_their_own_seconds_with_them() -> None:
    """r L(held) - (r - S(n)) L(given up) - dw S(n)"""
    held = (group("n1", 100.0, "a", "x"), group("n2", math.inf, "a", "y"))
    asked = Problem((trainer("a", CURVE, shrink_stall_s=5.0),), held, look_ahead_s=100.0)
    stays_s = (100 * LEAVES + 100) / 2
    assert value(asked, {1: 1}) == pytest.approx(180 * stays_s - 80 * 100 * LEAVES - 5 * 100)
    assert value(asked, {0: 1}) == pytest.approx(180 * stays_s - 80 * 100 - 5 * 100)


@pytest.mark.parametrize("policy", ELASTIC)
def test_where_a_departure_costs_much_each_trainer_keeps_to_one_cohort(policy: Policy) -> None:
    asked = Problem(
        tuple(trainer(id_, shrink_stall_s=600.0) for id_ in "ab"),
        (group("n1 n2 n3 n4 n5", 300.0, cohort="x"), group("n6 n7 n8", 300.0, cohort="y")),
    )
    plan = solve(asked, policy)
    assert {len(plan.grant("a")), len(plan.grant("b"))} == {5, 3}
    assert len(cohorts_of(plan, asked, "a")) == len(cohorts_of(plan, asked, "b")) == 1


@pytest.mark.parametrize("policy", ELASTIC)
def test_where_a_departure_costs_nothing_cohorts_are_mixed(policy: Policy) -> None:
    asked = Problem((trainer("a"),), (group("n1 n2", 300.0, cohort="x"), group("n3", 300.0, cohort="y")))
    plan = solve(asked, policy)
    assert (len(plan.grant("a")), plan.optimal) == (3, True)


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_node_of_another_cohort_is_refused_where_its_departure_costs_more_than_it_gives(policy: Policy) -> None:
    groups = (group("n1 n2 n3 n4", 60.0, "a", "x"), group("n5", 60.0, cohort="y"))
    plan = solve(Problem((trainer("a", shrink_stall_s=60.0),), groups), policy)
    assert plan.grant("a") == ("n1", "n2", "n3", "n4")
    assert plan.allocations[0].reason.why is Why.STALL_NOT_WORTH_IT
    assert plan.allocations[0].reason.text == (
        "a fifth node would have to be given back at another time than its other nodes, and that further stall "
        "would cost more than the node adds"
    )


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_node_that_is_expected_to_leave_within_its_start_up_is_not_taken(policy: Policy) -> None:
    asked = Problem(
        (trainer("a", startup_s=20.0, grow_stall_s=1.0),), (group("n1 n2", 600.0, "a"), group("n3", 5.0))
    )
    assert solve(asked, policy).grant("a") == ("n1", "n2")
    assert solve(replace(asked, terms=PUBLISHED), policy).grant("a") == ("n1", "n2", "n3")


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_longer_hole_goes_to_whom_it_gains_more(policy: Policy) -> None:
    slow, fast = trainer("slow", max_nodes=1), trainer("fast", Curve(((64, 6400.0),)), max_nodes=1)
    asked = Problem((slow, fast), (group("n1", 30.0), group("n2", 600.0)))
    plan = solve(asked, policy)
    assert (plan.grant("slow"), plan.grant("fast")) == (("n1",), ("n2",))


@pytest.mark.parametrize(("startup_s", "longest"), [(0.0, "fast"), (110.0, "slow")])
def test_a_long_start_up_makes_a_long_hole_worth_less(startup_s: float, longest: str) -> None:
    slow, fast = (
        trainer("slow", max_nodes=1),
        trainer("fast", Curve(((64, 1920.0),)), startup_s=startup_s, max_nodes=1),
    )
    asked = Problem((slow, fast), (group("n1", 30.0), group("n2", 600.0)))
    assert solve(asked).grant(longest) == ("n2",)


@pytest.mark.parametrize("policy", ELASTIC)
def test_who_shrinks_gives_up_the_nodes_that_leave_first(policy: Policy) -> None:
    groups = (group("n1", 60.0, "a"), group("n2", 600.0, "a"), group("n3", 300.0, "a"))
    plan = solve(Problem((trainer("a", max_nodes=2),), groups), policy)
    assert plan.grant("a") == ("n2", "n3")


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_minimum_is_gathered_from_several_cohorts(policy: Policy) -> None:
    groups = (group("n1 n2", 300.0, cohort="x"), group("n3", 300.0, cohort="y"), group("n4", 300.0, cohort="z"))
    plan = solve(Problem((trainer("a", min_nodes=4, max_nodes=4, shrink_stall_s=1.0),), groups), policy)
    assert set(plan.grant("a")) == {"n1", "n2", "n3", "n4"}


@each("policy", POLICIES)
def test_a_trainer_that_grows_keeps_what_it_has_although_it_leaves_soon(policy: Policy) -> None:
    asked = Problem((trainer("a"),), (group("n1", 10.0, "a"), group("n2 n3", 600.0)))
    assert solve(asked, policy).grant("a") == ("n1", "n2", "n3")


@pytest.mark.parametrize("policy", ELASTIC)
def test_the_last_seconds_of_a_dying_cohort_do_not_keep_a_trainer_from_a_long_hole(policy: Policy) -> None:
    """What is to go on is decided by the horizon: a cohort that leaves at once is worth nothing to anybody."""
    asked = Problem(
        (trainer("a", max_nodes=2), trainer("b", max_nodes=2)), (group("n1 n2", 0.0), group("n3 n4", 60.0))
    )
    plan = solve(asked, policy)
    assert sorted([plan.grant("a"), plan.grant("b")]) == [(), ("n3", "n4")]
