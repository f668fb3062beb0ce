"""Which nodes make up a trainer's counts: its own first, so that nothing migrates; then free ones; then those that
others give up, which come later: execution waits until they are free. The same input gives the same grants.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel


def place(model: ValueModel, compositions: Sequence[Composition]) -> dict[str, tuple[str, ...]]:
    """Grants of these compositions: trainer id -> nodes, those it keeps first, in their present order."""
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
    for trainer, rest in zip(problem.trainers, left, strict=True):
        for pool, count in rest.items():
            taken = free[pool][:count]
            del free[pool][:count]
            missing = count - len(taken)
            taken += released[pool][:missing]
            del released[pool][:missing]
            assert len(taken) == count, "more nodes are granted than the pool has"
            grants[trainer.id] += taken
    return {trainer: tuple(nodes) for trainer, nodes in grants.items()}
