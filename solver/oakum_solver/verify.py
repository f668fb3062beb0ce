"""Is the plan one that the problem allows, and worth what it says?

Recomputed from the Plan and the Problem alone. Nothing is shared with the code that made the plan, the value
function included: a bug there shows here.
"""

from __future__ import annotations

import math

from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.objectives import Objective
from oakum_solver.plan import Plan
from oakum_solver.problem import Problem, Trainer

_TOLERANCE = 1e-6
"""Allowed relative difference between the plan's value and the recomputed one."""


def verify(problem: Problem, plan: Plan) -> None:
    """Raise `InfeasiblePlanError` with the first rule that the plan breaks."""
    expected = [trainer.id for trainer in problem.trainers]
    given = [allocation.trainer for allocation in plan.allocations]
    if given != expected:
        raise InfeasiblePlanError(f"the plan allocates to {given}: expected {expected}, in this order")
    _check_nodes(problem, plan)
    for trainer in problem.trainers:
        _check_size(problem, plan, trainer)
        _check_no_migration(problem, plan, trainer)
    _check_value(problem, plan)


def _check_nodes(problem: Problem, plan: Plan) -> None:
    """Every granted node exists, and is granted once."""
    known = {node for group in problem.groups for node in group.nodes}
    granted_to: dict[str, str] = {}
    for allocation in plan.allocations:
        for node in allocation.nodes:
            if node not in known:
                raise InfeasiblePlanError(f"{allocation.trainer} is granted {node}, which is in no group")
            if node in granted_to:
                raise InfeasiblePlanError(
                    f"{node} is granted to {granted_to[node]} and again to {allocation.trainer}"
                )
            granted_to[node] = allocation.trainer


def _check_size(problem: Problem, plan: Plan, trainer: Trainer) -> None:
    size = len(plan.grant(trainer.id))
    if size and not trainer.min_nodes <= size <= trainer.max_nodes:
        raise InfeasiblePlanError(
            f"{trainer.id} is granted {size} nodes: expected 0 or {trainer.min_nodes} to {trainer.max_nodes}"
        )


def _check_no_migration(problem: Problem, plan: Plan, trainer: Trainer) -> None:
    """Who grows keeps every node it holds; who shrinks or stays gets no other."""
    held, granted = set(problem.held[trainer.id]), set(plan.grant(trainer.id))
    if not (held <= granted or granted <= held):
        raise InfeasiblePlanError(
            f"{trainer.id} gives up {sorted(held - granted)} and is granted {sorted(granted - held)}: "
            "expected it to keep its nodes where it gets others"
        )


def _check_value(problem: Problem, plan: Plan) -> None:
    value = math.fsum(_value(problem, plan, trainer) for trainer in problem.trainers)
    slack = _TOLERANCE * max(1.0, abs(value))
    if not abs(plan.value - value) <= slack:
        raise InfeasiblePlanError(f"the plan claims the value {plan.value!r}: recomputed, it is {value!r}")
    if not plan.bound >= value - slack:
        raise InfeasiblePlanError(f"the plan claims the bound {plan.bound!r} and is worth {value!r}")


def _value(problem: Problem, plan: Plan, trainer: Trainer) -> float:
    """Samples over the look-ahead, phase by phase, less what the stall costs, in the objective's unit."""
    before, after = len(problem.held[trainer.id]), len(plan.grant(trainer.id))
    rate_before = trainer.curve.rate(before) if before >= trainer.min_nodes else 0.0
    rate_after = trainer.curve.rate(after)
    horizon_s = problem.look_ahead_s
    if after > before:
        warm_s = min(trainer.startup_s, horizon_s)
        samples = warm_s * rate_before + (horizon_s - warm_s) * rate_after - trainer.grow_stall_s * rate_before
    elif after < before:
        samples = horizon_s * rate_after - trainer.shrink_stall_s * rate_before
    else:
        samples = horizon_s * rate_after
    if problem.objective is Objective.SPEEDUP:
        first_nodes, first_rate = next((p for p in trainer.curve.points if p[1] > 0), (1, 1.0))
        samples /= trainer.curve.rate(1) or first_rate / first_nodes
    return trainer.weight * samples
