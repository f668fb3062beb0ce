"""The best plan of a tiny problem, by looking at every plan."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from oakum_solver.pools import Composition
from oakum_solver.value import Floats, ValueModel


def compositions(model: ValueModel, j: int) -> Iterator[Composition]:
    """All that trainer j may be given without a migration, within its sizes and the nodes of each pool."""
    trainer, held = model.trainers[j], model.pools.held[j]
    pools = range(len(model.pools.pools))
    for counts in itertools.product(*(range(pool.size + 1) for pool in model.pools.pools)):
        nodes = sum(counts)
        if nodes and not trainer.min_nodes <= nodes <= trainer.max_nodes:
            continue
        if nodes and trainer.sizes and nodes not in trainer.sizes:
            continue
        taken = {model.pools.pools[pool].access for pool in pools if counts[pool] > held.get(pool, 0)}
        if trainer.access is not None and not taken <= trainer.access:
            continue
        grows = all(counts[pool] >= held.get(pool, 0) for pool in pools)
        shrinks = all(counts[pool] <= held.get(pool, 0) for pool in pools)
        if grows or shrinks:
            yield {pool: count for pool, count in enumerate(counts) if count}


def best_value(model: ValueModel) -> float:
    """The optimum over all plans within pools and users' caps; priorities and guarantees are not looked at."""
    caps = model.problem.user_caps
    users = sorted(caps)
    start = (*(pool.size for pool in model.pools.pools), *(caps[user] for user in users))
    best: dict[tuple[int, ...], float] = {start: 0.0}
    for j, trainer in enumerate(model.trainers):
        longer: dict[tuple[int, ...], float] = {}
        for composition in compositions(model, j):
            value = model.value(j, composition)
            nodes = sum(composition.values())
            taken = [composition.get(pool, 0) for pool in range(len(model.pools.pools))]
            taken += [nodes if trainer.user == user else 0 for user in users]
            for left, before in best.items():
                rest = tuple(have - take for have, take in zip(left, taken, strict=True))
                if min(rest, default=0) >= 0:
                    longer[rest] = max(before + value, longer.get(rest, -math.inf))
        best = longer
    return max(best.values())


def best_choice(values: Floats, num_nodes: int) -> float:
    """The best worth of one size for each row within `num_nodes`, -inf where none fits: row by row, the best for
    each number of nodes used so far."""
    best = {0: 0.0}
    for row in values.tolist():
        longer: dict[int, float] = {}
        for used, value in best.items():
            for nodes, more in enumerate(row):
                if used + nodes <= num_nodes and more > -math.inf:
                    longer[used + nodes] = max(value + more, longer.get(used + nodes, -math.inf))
        best = longer
    return max(best.values(), default=-math.inf)
