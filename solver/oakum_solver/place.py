"""Which nodes make up a trainer's size: never a migration, and nodes that leave together stay together.

A trainer that grows keeps all its nodes; one that shrinks keeps the nodes with the longest horizons. What
is given up may go to another trainer in the same plan: execution waits until it is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from oakum_solver.problem import Problem


@dataclass
class _Pool:
    """Nodes of one group that are to be had."""

    nodes: list[str]
    horizon_s: float
    released: bool
    """Still held by the trainer that gives them up: they come later than free ones."""


def place(problem: Problem, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """Grants of these sizes: trainer id -> nodes, those it keeps first. The same input gives the same grants.

    Trainers that need the most nodes choose first.
    """
    grants = {trainer.id: _kept(problem, trainer.id, sizes[trainer.id]) for trainer in problem.trainers}
    pools = _pools(problem, {node for nodes in grants.values() for node in nodes})
    needs = {trainer: sizes[trainer] - len(nodes) for trainer, nodes in grants.items()}
    for trainer in sorted(needs, key=lambda trainer: -needs[trainer]):
        grants[trainer] += _take(pools, needs[trainer])
    return grants


def _kept(problem: Problem, trainer: str, size: int) -> tuple[str, ...]:
    """The trainer's nodes that it keeps, in their present order."""
    held = problem.held[trainer]
    if size >= len(held):
        return held
    horizon_s = {
        node: group.horizon_s for group in problem.groups if group.owner == trainer for node in group.nodes
    }
    kept = set(sorted(held, key=lambda node: -horizon_s[node])[:size])
    return tuple(node for node in held if node in kept)


def _pools(problem: Problem, kept: set[str]) -> list[_Pool]:
    """Nodes that nobody keeps, by group: the longest horizon first, free before released."""
    pools = [
        _Pool([node for node in group.nodes if node not in kept], group.horizon_s, group.owner is not None)
        for group in problem.groups
    ]
    return sorted((pool for pool in pools if pool.nodes), key=lambda pool: (-pool.horizon_s, pool.released))


def _take(pools: list[_Pool], need: int) -> tuple[str, ...]:
    """Remove `need` nodes from the pools.

    Taken in order of horizon, the last pool touched decides when the first of the nodes leaves. Where that
    pool alone holds enough, all come from it: they leave together, no sooner, and the longer holes stay for
    others.
    """
    if need <= 0:
        return ()
    reached = 0
    for count, pool in enumerate(pools, start=1):
        reached += len(pool.nodes)
        if reached >= need:
            sources = [pool] if len(pool.nodes) >= need else pools[:count]
            break
    else:
        raise AssertionError(f"{need} nodes wanted, {reached} to be had: the sizes exceed the nodes")
    taken: list[str] = []
    for source in sources:
        wanted = need - len(taken)
        taken += source.nodes[:wanted]
        del source.nodes[:wanted]
    pools[:] = [pool for pool in pools if pool.nodes]
    return tuple(taken)
