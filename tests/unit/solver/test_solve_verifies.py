"""No plan leaves the solver unverified, whatever part of it has gone wrong."""

from __future__ import annotations

import pytest

from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.solve import solve


def test_a_plan_that_grants_a_node_twice_does_not_leave_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = Curve(((4, 4.0),))
    problem = Problem(trainers=(Trainer("a", curve), Trainer("b", curve)), groups=(NodeGroup(("n1", "n2")),))
    monkeypatch.setattr("oakum_solver.solve.place", lambda problem, sizes: dict.fromkeys(sizes, ("n1",)))
    with pytest.raises(InfeasiblePlanError, match="n1"):
        solve(problem)
