"""No plan leaves the solver unverified, whatever part of it has gone wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oakum_solver.allocate import Solution, allocate
from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, Policy, solve

CURVE = Curve(((4, 4.0),))
PROBLEM = Problem((PlannedTrainer("a", CURVE), PlannedTrainer("b", CURVE)), (NodeGroup(("n1", "n2")),))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_plan_that_grants_a_node_twice_does_not_leave_the_solver(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_solver.solve.assign_nodes", lambda *_: {"a": ("n1",), "b": ("n1",)})
    with pytest.raises(InfeasiblePlanError, match="n1"):
        solve(PROBLEM, policy)


@pytest.mark.parametrize("explained", [True, False])
def test_a_plan_of_an_invented_value_does_not_leave_the_solver(
    explained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boast(solution: Solution) -> float:
        return 1e6

    monkeypatch.setattr(Solution, "value", property(boast))
    with pytest.raises(InfeasiblePlanError, match=r"claims the value 1000000\.0"):
        solve(PROBLEM, "greedy", explained)


def test_a_plan_whose_bound_is_below_its_value_does_not_leave_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def pessimist(*arguments: object) -> Solution:
        return replace(allocate(*arguments), bound=-1.0)  # type: ignore[arg-type]

    monkeypatch.setattr("oakum_solver.solve.allocate", pessimist)
    with pytest.raises(InfeasiblePlanError, match=r"claims the bound -1\.0"):
        solve(PROBLEM)
