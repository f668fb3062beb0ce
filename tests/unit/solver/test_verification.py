"""Every way to break a plan is caught."""

from dataclasses import replace

import pytest

from cells import each
from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.objectives import Expression, NamedObjective
from oakum_solver.plan import Allocation, Plan
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.solve import solve
from oakum_solver.verify import verify

CURVE = Curve(((1, 100.0), (4, 300.0)))
PROBLEM = Problem(
    trainers=(
        PlannedTrainer("a", CURVE, max_nodes=4, user="ada"),
        PlannedTrainer("b", CURVE, min_nodes=2, max_nodes=3),
    ),
    groups=(NodeGroup(("n1", "n2", "n3"), owner="a"), NodeGroup(("n4", "n5", "n6"))),
)
PLAN = solve(PROBLEM)


def granting(plan: Plan = PLAN, **grants: str) -> Plan:
    """The plan with other nodes granted to some trainers."""
    return replace(
        plan,
        allocations=tuple(
            replace(allocation, nodes=tuple(grants[allocation.trainer].split()))
            if allocation.trainer in grants
            else allocation
            for allocation in plan.allocations
        ),
    )


def test_the_solvers_own_plan_passes() -> None:
    assert [len(allocation.nodes) for allocation in PLAN.allocations] == [3, 3]
    verify(PROBLEM, PLAN)


def test_the_order_of_a_grants_nodes_does_not_matter() -> None:
    verify(PROBLEM, granting(a="n3 n1 n2", b="n6 n4 n5"))


@each(
    ("plan", "complaint"),
    [
        (granting(a="n1 n2 n9"), "n9, which is in no group"),
        (granting(a="n1 n2 n3 n4"), "n4 is granted to a and again to b"),
        (granting(a="n1 n1 n2"), "n1 is granted to a and again to a"),
        (granting(b="n4"), "b is granted 1 nodes: expected 0 or 2 to 3"),
        (granting(a="n1", b="n2 n3 n4 n5"), "b is granted 4 nodes"),
        (granting(a="n1 n4", b="n5 n6"), "a gives up ['n2', 'n3'] and is granted ['n4']"),
        (granting(a="n4 n5 n6", b=""), "a gives up ['n1', 'n2', 'n3'] and is granted ['n4', 'n5', 'n6']"),
        (granting(b=""), "claims the value"),
        (replace(PLAN, value=PLAN.value * (1 + 1e-5)), "claims the value"),
        (replace(PLAN, value=PLAN.value * (1 - 1e-5)), "claims the value"),
        (replace(PLAN, value=float("nan")), "claims the value"),
        (replace(PLAN, value=float("inf")), "claims the value"),
        (replace(PLAN, bound=PLAN.value * 0.9), "claims the bound"),
        (replace(PLAN, bound=float("nan")), "claims the bound"),
        (replace(PLAN, allocations=PLAN.allocations[:1]), "expected ['a', 'b']"),
        (replace(PLAN, allocations=PLAN.allocations[::-1]), "expected ['a', 'b']"),
        (replace(PLAN, allocations=(*PLAN.allocations, PLAN.allocations[0])), "expected ['a', 'b']"),
    ],
)
def test_a_broken_plan_is_refused(plan: Plan, complaint: str) -> None:
    with pytest.raises(InfeasiblePlanError) as caught:
        verify(PROBLEM, plan)
    assert complaint in str(caught.value)


@each("objective", [NamedObjective.SPEEDUP, NamedObjective.FAIR_SHARE, Expression("samples + nodes")])
def test_a_plan_for_another_objective_is_refused(objective: NamedObjective) -> None:
    with pytest.raises(InfeasiblePlanError, match="claims the value"):
        verify(replace(PROBLEM, objective=objective), PLAN)


def test_an_allocation_to_a_stranger_is_refused() -> None:
    stranger = Allocation("c", (), PLAN.allocations[0].reason)
    with pytest.raises(InfeasiblePlanError, match="'c'"):
        verify(PROBLEM, replace(PLAN, allocations=(*PLAN.allocations, stranger)))


def test_a_cap_is_looked_at_for_its_user_only() -> None:
    verify(replace(PROBLEM, user_caps={"ada": 3, "bob": 0}), PLAN)
    with pytest.raises(InfeasiblePlanError, match="ada's trainers are granted 3 nodes: expected at most 2"):
        verify(replace(PROBLEM, user_caps={"ada": 2}), PLAN)


MIXED = Problem(
    trainers=(PlannedTrainer("a", CURVE, max_nodes=4, shrink_stall_s=2.0),),
    groups=(
        NodeGroup(("n1", "n2"), "a", 300.0, cohort="x"),
        NodeGroup(("n3",), horizon_s=100.0, cohort="x"),
        NodeGroup(("n4",), horizon_s=200.0, cohort="y"),
    ),
    look_ahead_s=100.0,
    terms=Terms(completion=True),
)


@each("term", ["startup", "new_rate", "horizons", "departures", "completion"])
def test_a_plan_that_counts_other_terms_is_refused(term: str) -> None:
    remaining = 5e3 if term == "completion" else 1e9
    asked = replace(MIXED, trainers=(replace(MIXED.trainers[0], remaining_samples=remaining),))
    plan = granting(solve(asked), a="n1 n2 n3 n4")
    others = replace(asked, terms=replace(asked.terms, **{term: False}))
    with pytest.raises(InfeasiblePlanError, match="recomputed, it is") as caught:
        verify(asked, replace(plan, value=0.0, bound=1e9))
    worth = float(str(caught.value).rpartition(" ")[2])
    verify(asked, replace(plan, value=worth, bound=worth))
    with pytest.raises(InfeasiblePlanError, match="claims the value"):
        verify(others, replace(plan, value=worth, bound=worth))


def test_nodes_of_a_cohort_leave_with_its_first() -> None:
    """100 s for all three of x, and what y's departure leaves standing still: worked out by hand."""
    asked = replace(MIXED, terms=replace(PUBLISHED, horizons=True, departures=True))
    plan = granting(solve(asked), a="n1 n2 n3 n4")
    x_s, y_s = 63.21205588285577, 78.69386805747332
    leaves_x, leaves_y = 0.6321205588285577, 0.3934693402873666
    before, after = 500 / 3, 300.0
    rest_of_x, rest_of_y = 100.0, 700 / 3
    made = before * x_s + (after - before) * (x_s + y_s) / 2 - 1.0 * before
    worth = made - 2 * (leaves_x * rest_of_x + leaves_y * rest_of_y)
    verify(asked, replace(plan, value=worth, bound=worth))
