"""Reduces the named nodes of a problem to pools, in which only counts matter.

A pool holds the nodes of equal type, access and forecast departure, whoever holds them now. A plan is then an
integer count for each (trainer, pool). Every plan whose counts fit the pools can be given node names without
moving a trainer from one node to another: a trainer gets its own nodes first, then free ones, then those that
others give up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from oakum_solver.problem import NodeGroup, Problem

Composition = dict[int, int]
"""Nodes of one trainer: index of a pool -> number of nodes in it. Pools with no nodes are left out."""


@dataclass(frozen=True)
class Pool:
    """Nodes of one type that the forecast expects to leave together."""

    node_type: str
    size: int
    horizon_s: float
    """Forecast mean, in seconds, of the time until the nodes leave. That time is modelled as exponential."""
    access: str = ""
    """Label by which trainers may have these nodes or not."""

    def productive_s(self, look_ahead_s: float, from_s: float = 0.0) -> float:
        """Expected seconds between `from_s` and `look_ahead_s` for which the nodes are still idle. 0 if `from_s`
        is not before `look_ahead_s`, or the horizon is 0.

        With mean h: the integral of exp(-t / h) from `from_s` to `look_ahead_s`.
        """
        if from_s >= look_ahead_s:
            return 0.0
        if self.horizon_s == math.inf:
            return look_ahead_s - from_s
        if self.horizon_s <= 0:
            return 0.0
        # expm1, because the difference of two exponentials loses all digits for long horizons.
        stays = -math.expm1((from_s - look_ahead_s) / self.horizon_s)
        return self.horizon_s * math.exp(-from_s / self.horizon_s) * stays

    def leaving(self, look_ahead_s: float) -> float:
        """Probability 1 - exp(-look_ahead_s / horizon_s) that the nodes leave within the look-ahead; 1 for a
        horizon of 0."""
        if self.horizon_s <= 0:
            return 1.0
        return -math.expm1(-look_ahead_s / self.horizon_s)


@dataclass(frozen=True)
class Pools:
    """All pools of a problem, and how many nodes of each pool every trainer holds."""

    pools: tuple[Pool, ...]
    held: tuple[Composition, ...]
    """What each trainer holds now, in the problem's order of trainers."""
    free: tuple[int, ...]
    """Number of nodes in each pool that no trainer holds."""
    of_group: tuple[int, ...]
    """Index of the pool of each of the problem's groups."""


def pools_of(problem: Problem) -> Pools:
    """Build the pools of a problem. Without the terms `horizons` and `departures`, each node type is one pool."""
    terms = problem.terms
    number: dict[tuple[str, str, str | None, float], int] = {}
    sizes: list[int] = []
    horizons_s: list[float] = []
    index = {trainer.id: position for position, trainer in enumerate(problem.trainers)}
    held: list[Composition] = [{} for _ in problem.trainers]
    free: list[int] = []
    of_group: list[int] = []
    for group in problem.groups:
        key = _key(group, terms.horizons, terms.departures)
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
        Pool(node_type, size, horizon_s, access)
        for (node_type, access, _, _), size, horizon_s in zip(number, sizes, horizons_s, strict=True)
    )
    return Pools(pools, tuple(held), tuple(free), tuple(of_group))


def _key(group: NodeGroup, horizons: bool, departures: bool) -> tuple[str, str, str | None, float]:
    """What a pool's nodes have in common: nodes with equal keys are in one pool. Cohorts are kept apart only where
    departures count; horizons where horizons or departures count."""
    if not (horizons or departures):
        return group.node_type, group.access, None, math.inf
    if group.cohort is not None and departures:
        return group.node_type, group.access, group.cohort, 0.0
    return group.node_type, group.access, None, group.horizon_s
