"""The simple choice of nodes with which the learnt one is compared: nodes by their number.

Every trainer keeps the lowest-numbered of its nodes and gets the lowest-numbered free ones, in the order of the
trainers. The counts are those of the plan.
"""

from __future__ import annotations

import dataclasses

from oakum_solver.plan import Plan
from oakum_solver.problem import Problem


def renamed_by_number(plan: Plan, problem: Problem) -> Plan:
    """The plan with the same number of nodes for each trainer, but other nodes: a trainer keeps the first of its
    own and gets the first free ones. Nodes that other trainers give up are granted last.

    The problem's groups have to list their nodes by number, and all nodes have to be alike.
    """
    free = [name for group in problem.groups if group.owner is None for name in group.nodes]
    kept = {}
    for allocation in plan.allocations:
        held = problem.held[allocation.trainer]
        kept[allocation.trainer] = held[: len(allocation.nodes)]
        free += held[len(allocation.nodes) :]
    allocations = []
    for allocation in plan.allocations:
        own = kept[allocation.trainer]
        missing = len(allocation.nodes) - len(own)
        allocations.append(dataclasses.replace(allocation, nodes=(*own, *free[:missing])))
        del free[:missing]
    return dataclasses.replace(plan, allocations=tuple(allocations))
