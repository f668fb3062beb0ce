"""One allocation problem in, one verified plan out, always within the time limit.

A greedy plan comes first; what improves on it never throws it away. The decision is then given node names,
explained, and verified by code that shares nothing with what made it.
"""

from __future__ import annotations

import time
from typing import Literal

from oakum_solver.allocate import Decision, allocate
from oakum_solver.equal_share import equal_shares
from oakum_solver.explain import explain
from oakum_solver.place import place
from oakum_solver.plan import Allocation, Plan, Reason, Why
from oakum_solver.problem import Problem
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify

Policy = Literal["milp", "greedy", "equal-share"]
POLICIES: tuple[Policy, ...] = ("milp", "greedy", "equal-share")

_UNEXPLAINED = Reason(Why.UNEXPLAINED, "")


def solve(problem: Problem, policy: Policy = "milp", explained: bool = True) -> Plan:
    """The best plan found within `problem.time_limit_s` seconds.

    `Plan.solver` says who found it: `greedy`, also where a bound proves it optimal or a solver failed;
    `exact`, the dynamic program; `prices`, where it was made from prices of the pools; `cbc` or `highs`; or
    `equal-share`, the baseline. Without `explained` the reasons stay empty, which takes half the time off a
    large plan. Raises `InfeasiblePlanError` where the plan fails its verification, which is a bug of the
    solver's and never the caller's.
    """
    started_s = time.perf_counter()
    model = ValueModel(problem)
    decision = _decide(model, policy, started_s)
    grants = place(model, decision.compositions)
    reasons = explain(model, decision) if explained else dict.fromkeys(problem.held, _UNEXPLAINED)
    plan = Plan(
        allocations=tuple(Allocation(id_, grants[id_], reasons[id_]) for id_ in problem.held),
        value=decision.value,
        bound=decision.bound,
        solver=decision.solver,
        solve_s=time.perf_counter() - started_s,
        optimal=decision.optimal,
    )
    verify(problem, plan)
    return plan


def _decide(model: ValueModel, policy: Policy, started_s: float) -> Decision:
    if policy == "equal-share":
        return equal_shares(model)
    limit_s = model.problem.time_limit_s
    return allocate(model, policy == "milp", lambda: limit_s - (time.perf_counter() - started_s))
