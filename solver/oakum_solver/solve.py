"""One allocation problem in, one verified plan out, always within the time limit.

Greedy first; the MILP improves on it where the relaxation's bound leaves room and time remains. The sizes
are then placed on nodes, explained, and the whole is verified before it leaves.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from oakum_solver.errors import MilpError
from oakum_solver.explain import explain
from oakum_solver.greedy import Sizes, fill, greedy_sizes
from oakum_solver.milp import milp_sizes, proves_optimal
from oakum_solver.place import place
from oakum_solver.plan import Allocation, Plan
from oakum_solver.problem import Problem
from oakum_solver.relaxation import relax
from oakum_solver.value import total_value, value_table
from oakum_solver.verify import verify

Policy = Literal["milp", "greedy"]

_WORTH_STARTING_S = 0.05
"""With less time left than this, CBC is not started: it would hardly have read its model."""


@dataclass(frozen=True)
class _Decision:
    """How many nodes each trainer gets, and how good that is."""

    sizes: Sizes
    value: float
    bound: float
    solver: str
    optimal: bool


def solve(problem: Problem, policy: Policy = "milp") -> Plan:
    """The best plan found within `problem.time_limit_s` seconds.

    `Plan.solver` is `greedy` where the relaxation proves the greedy plan optimal, so that CBC is not asked, or
    where CBC failed; `Plan.optimal` tells these apart. Raises `InfeasiblePlanError` where the plan fails its
    verification, which is a bug of the solver's and never the caller's.
    """
    started_s = time.perf_counter()
    decision = _decide(problem, policy, started_s)
    grants = place(problem, decision.sizes)
    reasons = explain(problem, decision.sizes)
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


def _decide(problem: Problem, policy: Policy, started_s: float) -> _Decision:
    values = value_table(problem)
    relaxation = relax(values, problem.num_nodes)
    held = {trainer: len(nodes) for trainer, nodes in problem.held.items()}
    incumbent = greedy_sizes(values, held, problem.num_nodes, relaxation)
    value = total_value(values, incumbent)
    if proves_optimal(relaxation.bound, value):
        return _Decision(incumbent, value, value, "greedy", optimal=True)
    fallback = _Decision(incumbent, value, relaxation.bound, "greedy", optimal=False)
    left_s = problem.time_limit_s - (time.perf_counter() - started_s)
    if policy == "greedy" or left_s < _WORTH_STARTING_S:
        return fallback
    try:
        answer = milp_sizes(values, problem.num_nodes, incumbent, relaxation, left_s)
    except MilpError:
        return fallback
    sizes = fill(values, answer.sizes, problem.num_nodes)
    return _Decision(sizes, total_value(values, sizes), answer.bound, "cbc", answer.optimal)
