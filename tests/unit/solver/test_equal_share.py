"""The baseline: N // J nodes each, clipped, and the rest to who came first."""

import math

from hypothesis import given, settings

from cells import each
from oakum_solver.plan import Plan
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import solve
from oakum_solver.verify import verify
from random_problems import problems

CURVE = Curve(((64, 64.0),))


def shared(num_nodes: int, *bounds: tuple[int, int], held: tuple[int, ...] = ()) -> Plan:
    """The equal shares of trainers with these (minimum, maximum) that hold this many of the nodes."""
    trainers = tuple(
        PlannedTrainer(f"t{number}", CURVE, min_nodes=low, max_nodes=high)
        for number, (low, high) in enumerate(bounds)
    )
    owners = [f"t{number}" for number, count in enumerate(held) for _ in range(count)]
    owners_and_free = [*owners, *[None] * (num_nodes - len(owners))]
    groups = tuple(NodeGroup((f"n{number}",), owner) for number, owner in enumerate(owners_and_free))
    return solve(Problem(trainers, groups), "equal-share")


def sizes(plan: Plan) -> list[int]:
    return [len(allocation.nodes) for allocation in plan.allocations]


@each(
    ("num_nodes", "bounds", "expected"),
    [
        (9, [(1, 64)] * 3, [3, 3, 3]),
        (11, [(1, 64)] * 3, [5, 3, 3]),
        (2, [(1, 64)] * 3, [1, 1, 0]),
        (9, [(1, 2), (1, 64), (1, 64)], [2, 4, 3]),
        (9, [(4, 64), (1, 64), (1, 2)], [4, 3, 2]),
        (9, [(1, 3), (1, 3), (1, 2)], [3, 3, 2]),
        (4, [(5, 64), (1, 64)], [0, 4]),
        (0, [(1, 64)], [0]),
        (9, [], []),
    ],
    ids=["even", "rest", "few", "maximum", "minimum", "left over", "too large", "no node", "no trainer"],
)
def test_each_gets_its_share_clipped_and_the_rest_goes_to_who_came_first(
    num_nodes: int, bounds: list[tuple[int, int]], expected: list[int]
) -> None:
    assert sizes(shared(num_nodes, *bounds)) == expected


def test_who_holds_more_than_its_share_gives_the_rest_up() -> None:
    plan = shared(6, (1, 64), (1, 64), held=(5,))
    assert [allocation.nodes for allocation in plan.allocations] == [("n0", "n1", "n2"), ("n5", "n3", "n4")]


def test_who_holds_its_share_keeps_it() -> None:
    plan = shared(4, (1, 64), (1, 64), held=(2, 2))
    assert [allocation.nodes for allocation in plan.allocations] == [("n0", "n1"), ("n2", "n3")]


def test_it_looks_at_no_curve() -> None:
    flat, steep = PlannedTrainer("flat", Curve(((1, 1.0),))), PlannedTrainer("steep", Curve(((64, 6400.0),)))
    plan = solve(Problem((flat, steep), (NodeGroup(("n1", "n2", "n3", "n4")),)), "equal-share")
    assert sizes(plan) == [2, 2]


def test_it_proves_nothing() -> None:
    plan = shared(4, (1, 64), (1, 64))
    assert (plan.solver, plan.optimal) == ("equal-share", False)
    assert plan.bound >= plan.value
    assert not math.isnan(plan.gap)


@settings(deadline=None)
@given(problems(social=True, typed=True))
def test_it_gives_a_feasible_plan_for_any_problem(problem: Problem) -> None:
    verify(problem, solve(problem, "equal-share"))
