"""Turns the counts of a solution into node names, deterministically.

A trainer keeps its own nodes, so that none moves; then it gets free ones, then those that other trainers give up,
for which execution has to wait. A group lists its preferred nodes first: a shrinking trainer keeps the first of
its own, and free nodes are given out in this order. The trainer to which the loss of a node costs most chooses
first, because foreground jobs are likeliest to take the nodes that come last (`_losses`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel


def assign_nodes(model: ValueModel, compositions: Sequence[Composition]) -> dict[str, tuple[str, ...]]:
    """Trainer id -> names of its nodes: first those that it keeps, in their present order, then the new ones. The
    result is deterministic."""
    problem = model.problem
    index = {trainer.id: j for j, trainer in enumerate(problem.trainers)}
    grants: dict[str, list[str]] = {trainer.id: [] for trainer in problem.trainers}
    unassigned: list[Composition] = [dict(composition) for composition in compositions]
    free: dict[int, list[str]] = defaultdict(list)
    released: dict[int, list[str]] = defaultdict(list)
    for group, pool in zip(problem.groups, model.pools.of_group, strict=True):
        if group.owner is None:
            free[pool] += group.nodes
            continue
        mine = unassigned[index[group.owner]]
        kept = min(mine.get(pool, 0), len(group.nodes))
        grants[group.owner] += group.nodes[:kept]
        released[pool] += group.nodes[kept:]
        mine[pool] = mine.get(pool, 0) - kept
    for j in _dearest_first(model, compositions, unassigned):
        trainer = problem.trainers[j]
        for pool, count in unassigned[j].items():
            taken = free[pool][:count]
            del free[pool][:count]
            missing = count - len(taken)
            taken += released[pool][:missing]
            del released[pool][:missing]
            assert len(taken) == count, "more nodes are granted than the pool has"
            grants[trainer.id] += taken
    return {trainer_id: tuple(nodes) for trainer_id, nodes in grants.items()}


def _dearest_first(
    model: ValueModel, compositions: Sequence[Composition], missing: Sequence[Composition]
) -> list[int]:
    """Indexes of the trainers that still need nodes, the one to which the loss of a node costs most first."""
    wanting = [j for j, rest in enumerate(missing) if any(rest.values())]
    if len(wanting) < 2:
        return wanting
    losses = _losses(model, compositions)
    return sorted(wanting, key=lambda j: -losses[j])


def _losses(model: ValueModel, compositions: Sequence[Composition]) -> list[float]:
    """What the loss of a node costs each trainer, in seconds of training on one node, times its weight.

    With s(n) the speedup on n nodes, m = s(n) - s(n - 1), and stalls and start-up in seconds, to lose a node and
    to get one again later costs

        a = shrink s(n - 1) + grow s(n) + start m.

    Meanwhile the trainer goes without m. Or the plan moves a node over from the trainer that gains least from its
    last one, the donor. So over the look-ahead T the loss also costs the lesser of

        T (m - m')   and   a' + grow s(n) + start m,

    where m' and a' are the donor's, and 0 while nodes are left over.
    """
    losses = [_loss_of(model, j, composition) for j, composition in enumerate(compositions)]
    donor = _Loss(0.0, 0.0, 0.0)
    if sum(sum(composition.values()) for composition in compositions) == model.problem.num_nodes:
        having = (loss for loss, composition in zip(losses, compositions, strict=True) if composition)
        donor = min(having, key=lambda loss: (loss.gain, loss.again), default=donor)
    look_ahead_s = model.problem.look_ahead_s
    return [
        loss.again + min(look_ahead_s * max(0.0, loss.gain - donor.gain), donor.again + loss.joining)
        for loss in losses
    ]


@dataclass(frozen=True)
class _Loss:
    """What a trainer's last node is worth to it, in its speed on one node, times its weight."""

    gain: float
    """m of `_losses`: the speedup that the node adds."""
    joining: float
    """grow s(n) + start m, in seconds."""
    again: float
    """a, in seconds: the node is lost, and another one joins later."""


def _loss_of(model: ValueModel, j: int, composition: Composition) -> _Loss:
    trainer = model.trainers[j]
    scale = trainer.weight / float(np.asarray(model.facts.rate_one)[j, 0])
    speed = scale * model.rate(j, composition)
    less = scale * model.rate(j, _without_one(composition))
    joining = trainer.grow_stall_s * speed + trainer.startup_s * (speed - less)
    return _Loss(speed - less, joining, trainer.shrink_stall_s * less + joining)


def _without_one(composition: Composition) -> Composition:
    """The composition without one node of its last pool."""
    if not composition:
        return {}
    *others, (pool, count) = composition.items()
    return dict(others) if count == 1 else {**dict(others), pool: count - 1}
