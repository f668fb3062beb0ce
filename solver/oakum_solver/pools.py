"""The nodes of a problem as pools: counts instead of names.

Nodes of one pool are alike in type and forecast departure, whoever holds them now; what a trainer holds of a
pool is a number. So a plan is an integer count for each (trainer, pool), and every such plan that keeps
within the pools can be given names without a migration: a trainer's own nodes first, then free ones, then
those that others give up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oakum_solver.problem import Problem

Composition = dict[int, int]
"""Pool -> number of its nodes, none of them 0."""


@dataclass(frozen=True)
class Pool:
    """Nodes that leave together, as far as the forecast knows."""

    node_type: str
    size: int
    horizon_s: float
    """Forecast mean of the seconds until they leave. What follows takes the time to be exponential."""

    def productive_s(self, look_ahead_s: float, from_s: float = 0.0) -> float:
        """Expected seconds of the look-ahead, from `from_s` on, for which the nodes are still there."""
        if from_s >= look_ahead_s:
            return 0.0
        if self.horizon_s == math.inf:
            return look_ahead_s - from_s
        if self.horizon_s <= 0:
            return 0.0
        # As a difference of two exponentials it would cancel for long horizons.
        stays = -math.expm1((from_s - look_ahead_s) / self.horizon_s)
        return self.horizon_s * math.exp(-from_s / self.horizon_s) * stays

    def leaving(self, look_ahead_s: float) -> float:
        """Probability that they leave within the look-ahead."""
        if self.horizon_s <= 0:
            return 1.0
        return -math.expm1(-look_ahead_s / self.horizon_s)


@dataclass(frozen=True)
class Pools:
    """All pools of a problem, and who holds how many nodes of which."""

    pools: tuple[Pool, ...]
    held: tuple[Composition, ...]
    """For each trainer, in the problem's order."""
    free: tuple[int, ...]
    """For each pool, the nodes that nobody holds."""
    of_group: tuple[int, ...]
    """For each of the problem's groups, its pool."""


def pools_of(problem: Problem) -> Pools:
    """The pools of a problem: one for each type where the forecast is not asked for."""
    terms = problem.terms
    number: dict[tuple[str, str | None, float], int] = {}
    sizes: list[int] = []
    horizons_s: list[float] = []
    index = {trainer.id: position for position, trainer in enumerate(problem.trainers)}
    held: list[Composition] = [{} for _ in problem.trainers]
    free: list[int] = []
    of_group: list[int] = []
    for group in problem.groups:
        key = _key(group.node_type, group.cohort, group.horizon_s, terms.horizons, terms.departures)
        pool = number.setdefault(key, len(number))
        of_group.append(pool)
        if pool == len(sizes):
            sizes.append(0)
            free.append(0)
            horizons_s.append(math.inf)
        count = len(group.nodes)
        sizes[pool] += count
        if terms.horizons or terms.departures:
            horizons_s[pool] = min(horizons_s[pool], group.horizon_s)
        if group.owner is None:
            free[pool] += count
        elif count:
            mine = held[index[group.owner]]
            mine[pool] = mine.get(pool, 0) + count
    pools = tuple(
        Pool(node_type, size, horizon_s)
        for (node_type, _, _), size, horizon_s in zip(number, sizes, horizons_s, strict=True)
    )
    return Pools(pools, tuple(held), tuple(free), tuple(of_group))


def _key(
    node_type: str, cohort: str | None, horizon_s: float, horizons: bool, departures: bool
) -> tuple[str, str | None, float]:
    """What makes nodes alike. A cohort is told apart where departures count; a horizon where either counts."""
    if not (horizons or departures):
        return node_type, None, math.inf
    if cohort is not None and departures:
        return node_type, cohort, 0.0
    return node_type, None, horizon_s
