"""The baseline: what a site would write in an afternoon. It looks at no curve, no stall and no forecast."""

from __future__ import annotations

import math

from oakum_solver.allocate import Decision, loose_bound
from oakum_solver.draft import Draft
from oakum_solver.filling import gathered
from oakum_solver.value import ValueModel


def equal_shares(model: ValueModel) -> Decision:
    """Each of J trainers gets N // J nodes, clipped to its bounds; the rest goes first come first served."""
    draft = Draft(model)
    sizes = _sizes(model)
    for j, size in enumerate(sizes):
        if size < model.held[j]:
            draft.shrink(j, size)
    for j, size in enumerate(sizes):
        need = size - sum(draft.after[j].values())
        for pool, count in (gathered(draft, j, need) or {}).items() if need > 0 else ():
            draft.add(j, pool, count)
    draft.drop_below_minimum()
    draft.obey_limits()
    values = tuple(draft.values())
    shares = Decision(tuple(draft.after), values, math.inf, "equal-share", optimal=False)
    return shares.bounded_by(loose_bound(model)).judged()


def _sizes(model: ValueModel) -> list[int]:
    left, share = model.problem.num_nodes, model.problem.num_nodes // max(1, len(model.trainers))
    room = dict(model.problem.user_caps)
    sizes = []
    for trainer in model.trainers:
        size = min(max(share, trainer.min_nodes), trainer.max_nodes, left, room.get(trainer.user or "", left))
        sizes.append(size if size >= trainer.min_nodes else 0)
        left -= sizes[-1]
        room[trainer.user or ""] = room.get(trainer.user or "", model.problem.num_nodes) - sizes[-1]
    for j, trainer in enumerate(model.trainers):
        most = min(left, room[trainer.user or ""], trainer.max_nodes - sizes[j])
        if most > 0 and (sizes[j] or most >= trainer.min_nodes):
            sizes[j] += most
            left -= most
            room[trainer.user or ""] -= most
    return sizes
