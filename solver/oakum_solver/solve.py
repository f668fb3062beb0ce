"""Solves one allocation problem within its time limit.

A greedy solution comes first, and later methods can only improve on it. The solution then gets node names and
reasons, and `verify` checks the plan with code that it shares with none of the above.
"""

from __future__ import annotations

import time
from typing import Literal

from oakum_solver.allocate import Solution, allocate
from oakum_solver.bundled import in_bundles
from oakum_solver.equal_share import equal_shares
from oakum_solver.explain import explain
from oakum_solver.node_assignment import assign_nodes
from oakum_solver.plan import Allocation, Plan, Reason, Why
from oakum_solver.problem import Problem
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify

Policy = Literal["milp", "greedy", "equal-share"]
POLICIES: tuple[Policy, ...] = ("milp", "greedy", "equal-share")

_UNEXPLAINED = Reason(Why.UNEXPLAINED, "")


def solve(problem: Problem, policy: Policy = "milp", explained: bool = True) -> Plan:
    """The best plan found within `problem.time_limit_s` seconds.

    `Plan.solver` names the method that found it: `greedy` (also if a bound proves it optimal or the MILP solver
    failed), `exact` (the dynamic program), `prices` (made from Lagrangian prices), `cbc`, `highs` or
    `equal-share` (the baseline). Without `explained` the reasons stay empty, which halves the time of a large
    plan. Raises `InfeasiblePlanError` where the plan fails verification: a bug of the solver, never of the caller.
    """
    started_s = time.perf_counter()
    model = ValueModel(problem)
    solution = _decide(model, policy, started_s)
    grants = assign_nodes(model, solution.compositions) if solution.grants is None else solution.grants
    reasons = explain(model, solution) if explained else dict.fromkeys(problem.held, _UNEXPLAINED)
    plan = Plan(
        allocations=tuple(Allocation(id_, grants[id_], reasons[id_]) for id_ in problem.held),
        value=solution.value,
        bound=solution.bound,
        solver=solution.solver,
        solve_s=time.perf_counter() - started_s,
        optimal=solution.optimal,
    )
    verify(problem, plan)
    return plan


def _decide(model: ValueModel, policy: Policy, started_s: float) -> Solution:
    has_bundles = any(trainer.bundle != 1 for trainer in model.trainers)
    limit_s = model.problem.time_limit_s

    def left_s(share: float = 1.0) -> float:
        return share * limit_s - (time.perf_counter() - started_s)

    if policy == "equal-share":
        solution = equal_shares(model)
    else:
        solution = allocate(model, policy == "milp", lambda: left_s(0.5 if has_bundles else 1.0))
    return in_bundles(model, solution, policy == "milp", left_s) if has_bundles else solution
