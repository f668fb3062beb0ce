"""Turns the counts of a solution into node names, deterministically.

A trainer keeps its own nodes, so that none moves; then it gets free ones, then those that other trainers give up,
for which execution has to wait. A group lists its preferred nodes first: a shrinking trainer keeps the first of
its own, and free nodes are given out in this order. The trainer that loses most by a stall chooses first, because
foreground jobs are likeliest to take the nodes that come last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel


def assign_nodes(model: ValueModel, compositions: Sequence[Composition]) -> dict[str, tuple[str, ...]]:
    """Trainer id -> names of its nodes: first those that it keeps, in their present order, then the new ones. The
    result is deterministic."""
    problem = model.problem
    index = {trainer.id: j for j, trainer in enumerate(problem.trainers)}
    grants: dict[str, list[str]] = {trainer.id: [] for trainer in problem.trainers}
    left: list[Composition] = [dict(composition) for composition in compositions]
    free: dict[int, list[str]] = defaultdict(list)
    released: dict[int, list[str]] = defaultdict(list)
    for group, pool in zip(problem.groups, model.pools.of_group, strict=True):
        if group.owner is None:
            free[pool] += group.nodes
            continue
        mine = left[index[group.owner]]
        kept = min(mine.get(pool, 0), len(group.nodes))
        grants[group.owner] += group.nodes[:kept]
        released[pool] += group.nodes[kept:]
        mine[pool] = mine.get(pool, 0) - kept
    for j in _by_cost_of_a_stall(model, compositions, left):
        trainer = problem.trainers[j]
        for pool, count in left[j].items():
            taken = free[pool][:count]
            del free[pool][:count]
            missing = count - len(taken)
            taken += released[pool][:missing]
            del released[pool][:missing]
            assert len(taken) == count, "more nodes are granted than the pool has"
            grants[trainer.id] += taken
    return {trainer: tuple(nodes) for trainer, nodes in grants.items()}


def _by_cost_of_a_stall(
    model: ValueModel, compositions: Sequence[Composition], missing: Sequence[Composition]
) -> list[int]:
    """Indexes of the trainers that still need nodes, the one that a departure costs most first.

    The cost is weight x shrink stall x rate, the rate in units of the trainer's own rate on one node.
    """
    trainers, rate_one = model.trainers, np.asarray(model.facts.rate_one)
    wanting = [j for j, rest in enumerate(missing) if any(rest.values())]
    costs = {
        j: trainers[j].weight * trainers[j].shrink_stall_s * model.rate(j, compositions[j]) / float(rate_one[j, 0])
        for j in wanting
    }
    return sorted(wanting, key=lambda j: -costs[j])
