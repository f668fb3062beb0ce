"""The baseline policy: equal shares of the nodes, without regard to curves, stalls and forecasts."""

from __future__ import annotations

import math

from oakum_solver.allocate import Solution, loose_bound
from oakum_solver.draft import Draft
from oakum_solver.free_nodes import minimum_from_pools
from oakum_solver.value import ValueModel


def equal_shares(model: ValueModel) -> Solution:
    """Give each of J trainers N // J of the N nodes, or the nearest number that it may have, and the rest to the
    trainers in their order. Returns the solution, with an upper bound on the value of every plan."""
    draft = Draft(model)
    sizes = _sizes(model)
    for j, size in enumerate(sizes):
        if size < model.held[j]:
            draft.shrink(j, size)
    for j, size in enumerate(sizes):
        need = size - sum(draft.after[j].values())
        for pool, count in (minimum_from_pools(draft, j, need) or {}).items() if need > 0 else ():
            draft.add(j, pool, count)
    draft.drop_unusable()
    draft.shrink_to_limits()
    values = tuple(draft.values())
    shares = Solution(tuple(draft.after), values, math.inf, "equal-share", optimal=False)
    return shares.with_bound(loose_bound(model)).with_proof()


def _sizes(model: ValueModel) -> list[int]:
    free, share = model.problem.num_nodes, model.problem.num_nodes // max(1, len(model.trainers))
    room = dict(model.problem.user_caps)
    sizes = []
    for trainer in model.trainers:
        size = min(max(share, trainer.min_nodes), trainer.max_nodes, free, room.get(trainer.user or "", free))
        sizes.append(trainer.fitting(size))
        free -= sizes[-1]
        room[trainer.user or ""] = room.get(trainer.user or "", model.problem.num_nodes) - sizes[-1]
    for j, trainer in enumerate(model.trainers):
        most = min(free, room[trainer.user or ""], trainer.max_nodes - sizes[j])
        if most > 0 and (more := trainer.fitting(sizes[j] + most) - sizes[j]) > 0:
            sizes[j] += more
            free -= more
            room[trainer.user or ""] -= more
    return sizes
