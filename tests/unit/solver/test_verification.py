"""Every way to break a plan is caught."""

from dataclasses import replace

import pytest

from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.objectives import Objective
from oakum_solver.plan import Allocation, Plan
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.solve import solve
from oakum_solver.verify import verify

CURVE = Curve(((1, 100.0), (4, 300.0)))
PROBLEM = Problem(
    trainers=(Trainer("a", CURVE, max_nodes=4), Trainer("b", CURVE, min_nodes=2, max_nodes=3)),
    groups=(NodeGroup(("n1", "n2", "n3"), owner="a"), NodeGroup(("n4", "n5", "n6"))),
)
PLAN = solve(PROBLEM)


def granting(**grants: str) -> Plan:
    """The plan with other nodes for some trainers."""
    return replace(
        PLAN,
        allocations=tuple(
            replace(allocation, nodes=tuple(grants[allocation.trainer].split()))
            if allocation.trainer in grants
            else allocation
            for allocation in PLAN.allocations
        ),
    )


def test_the_solvers_own_plan_passes() -> None:
    assert [len(allocation.nodes) for allocation in PLAN.allocations] == [3, 3]
    verify(PROBLEM, PLAN)


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (granting(a="n1 n2 n9"), "n9, which is in no group"),
        (granting(a="n1 n2 n3 n4"), "n4 is granted to a and again to b"),
        (granting(a="n1 n1 n2"), "n1 is granted to a and again to a"),
        (granting(b="n4"), "b is granted 1 nodes: expected 0 or 2 to 3"),
        (granting(a="n1", b="n2 n3 n4 n5"), "b is granted 4 nodes"),
        (granting(a="n1 n4", b="n5 n6"), "a gives up ['n2', 'n3'] and is granted ['n4']"),
        (granting(b=""), "claims the value"),
        (replace(PLAN, value=PLAN.value * (1 + 1e-5)), "claims the value"),
        (replace(PLAN, value=float("nan")), "claims the value"),
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


def test_a_plan_for_another_objective_is_refused() -> None:
    with pytest.raises(InfeasiblePlanError, match="claims the value"):
        verify(replace(PROBLEM, objective=Objective.SPEEDUP), PLAN)


def test_an_allocation_to_a_stranger_is_refused() -> None:
    stranger = Allocation("c", (), PLAN.allocations[0].reason)
    with pytest.raises(InfeasiblePlanError, match="'c'"):
        verify(PROBLEM, replace(PLAN, allocations=(*PLAN.allocations, stranger)))
