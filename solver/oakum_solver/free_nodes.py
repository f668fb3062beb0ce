"""Hands out the free nodes of a draft: pool by pool, each pool split among the trainers by its own knapsack."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from oakum_solver.draft import Draft
from oakum_solver.knapsack import exact, fill, relax
from oakum_solver.value import Floats, ValueModel

_MOST_ROUNDS = 3


def hand_out_free_nodes(draft: Draft, classes: Iterable[list[int]], thorough: bool) -> None:
    """Give free nodes to the trainers that gain most from them, one priority class after the other.

    Guaranteed minimums come first. Pools are split whole, the largest first, so that a trainer gets its nodes from
    few pools and few departures can stall it. `thorough` splits each pool exactly instead of greedily.
    """
    gather_next_size(draft, draft.model.by_guarantee(), forced=True)
    for trainers in classes:
        for _ in range(_MOST_ROUNDS):
            free_before = sum(draft.free)
            for pool in _in_order(draft):
                if draft.free[pool]:
                    _split(draft, pool, trainers, thorough)
            longest_first = sorted(trainers, key=lambda j: -draft.model.trainers[j].waited_s)
            gather_next_size(draft, longest_first, forced=False)
            if sum(draft.free) in (0, free_before):
                break


def _in_order(draft: Draft) -> list[int]:
    """Pools with free nodes in the order in which they are split.

    The fastest node type comes first, then the pool with the most free nodes, then the one that lasts longest.
    """
    model, lasts_s = draft.model, draft.model.lasts_s
    pools = [pool for pool, free in enumerate(draft.free) if free]
    speed = dict.fromkeys(pools, 0.0)
    if model.typed and len(pools) > 1:
        for pool in pools:
            gains = draft.gains(pool)
            speed[pool] = float((gains[:, 1:] / np.arange(1, gains.shape[1])).max(initial=0.0))
    return sorted(pools, key=lambda pool: (-speed[pool], -draft.free[pool], -lasts_s[pool]))


def resplit_pools(draft: Draft, trainers: list[int], go_on: Callable[[], bool]) -> None:
    """For one pool after the other, take back the nodes that this draft gave to trainers, and split them anew;
    a split that does not raise the draft's value is undone. Repeats this while it raises the value, and stops
    early when `go_on()` is false. Changes the draft."""
    worth = math.fsum(draft.values())
    for _ in range(_MOST_ROUNDS):
        before = worth
        for pool in range(len(draft.free)):
            if not go_on():
                return
            after, free = [dict(composition) for composition in draft.after], list(draft.free)
            if not draft.take_back_new_nodes(pool):
                continue
            _split(draft, pool, trainers, thorough=True)
            now = math.fsum(draft.values())
            if now > worth:
                worth = now
            else:
                draft.restore(after, free)
        if worth <= before:
            return


def _split(draft: Draft, pool: int, trainers: list[int], thorough: bool) -> None:
    """Split the free nodes of one pool among `trainers` by a knapsack over their gains, and enter the result in
    the draft. The draft stays as it is where no node brings a gain."""
    gains = draft.gains(pool)[trainers]
    if draft.model.problem.user_caps:
        _split_within_caps(draft, pool, trainers, gains)
        return
    if not (gains[:, 1:] > 0).any():
        return
    relaxation = relax(gains, draft.free[pool])
    assert relaxation is not None, "no nodes at all is always a choice"
    sizes = fill(gains, relaxation.sizes, draft.free[pool])
    if thorough:
        better = exact(gains, draft.free[pool], sizes, relaxation)
        sizes = sizes if better is None else better
    for j, more in zip(trainers, sizes.tolist(), strict=True):
        if more:
            draft.add(j, pool, more)


def _split_within_caps(draft: Draft, pool: int, trainers: list[int], gains: Floats) -> None:
    """Split a pool greedily within the users' caps: the step with the largest gain per node first.

    `gains` is `Draft.gains` of the pool, the rows of `trainers` only.
    """
    more = np.arange(gains.shape[1])
    while draft.free[pool]:
        room = np.array([min(draft.free[pool], draft.room_under_cap(j)) for j in trainers])[:, None]
        slopes = np.where((more > 0) & (more <= room), gains, -np.inf) / np.maximum(more, 1)
        row, count = divmod(int(slopes.argmax()), len(more))
        if not slopes[row, count] > 0:
            return
        draft.add(trainers[row], pool, count)
        gains = draft.gains(pool)[trainers]
        more = np.arange(gains.shape[1])


def gather_next_size(draft: Draft, trainers: list[int], forced: bool) -> None:
    """Give each of `trainers`, one after the other, that is below its minimum, or that may have certain numbers of
    nodes only, the nodes missing to the next number that it may have, from several pools if need be.

    With `forced`, trainers below their minimum get them in any case, and the others none; without it, those
    trainers whose value rises by that. A trainer for which too few nodes are free gets none.
    """
    for j in trainers:
        need = _missing(draft, j, only_minimum=forced)
        if need <= 0 or draft.shrunk[j] or need > min(sum(draft.free), draft.room_under_cap(j)):
            continue
        nodes_by_pool = minimum_from_pools(draft, j, need)
        if nodes_by_pool is None:
            continue
        grown = dict(draft.after[j])
        for pool, count in nodes_by_pool.items():
            grown[pool] = grown.get(pool, 0) + count
        if forced or draft.model.value(j, grown) > draft.model.value(j, draft.after[j]):
            for pool, count in nodes_by_pool.items():
                draft.add(j, pool, count)


def _missing(draft: Draft, j: int, *, only_minimum: bool) -> int:
    """How many nodes trainer j lacks to its minimum or, if it may have certain numbers only, to the next of them;
    0 where pools can be split for it node by node."""
    trainer, nodes = draft.model.trainers[j], sum(draft.after[j].values())
    if nodes < trainer.min_nodes:
        return trainer.min_nodes - nodes
    more = trainer.following(nodes) if trainer.sizes and not only_minimum else None
    return 0 if more is None else more - nodes


def minimum_from_pools(draft: Draft, j: int, need: int) -> dict[int, int] | None:
    """Pool -> number of nodes that add up to `need` free nodes for trainer j, from as few pools as possible.

    None where fewer free nodes are ones that the trainer may have, of types that it can use together.
    """
    model = draft.model
    trainer = model.trainers[j]
    present = set(model.types(draft.after[j]))
    usable = set(trainer.curves_by_type or {pool.node_type for pool in model.pools.pools})
    together = trainer.mixes_types or trainer.curves_by_type is None
    free = [p for p, count in enumerate(draft.free) if count and model.may_have(j, p)]
    choices = [usable] if together else [{t} for t in sorted(usable if not present else present & usable)]
    for types in choices:
        pools = [p for p in free if model.pools.pools[p].node_type in types]
        if sum(draft.free[pool] for pool in pools) >= need:
            return _largest_first(draft, pools, need)
    return None


def _largest_first(draft: Draft, pools: list[int], need: int) -> dict[int, int]:
    nodes_by_pool = {}
    for pool in sorted(pools, key=lambda pool: -draft.free[pool]):
        if need > 0:
            nodes_by_pool[pool] = min(need, draft.free[pool])
            need -= nodes_by_pool[pool]
    return nodes_by_pool


def priority_classes(model: ValueModel) -> list[list[int]]:
    """Indexes of the trainers of each priority, the highest priority first."""
    priorities = sorted({trainer.priority for trainer in model.trainers}, reverse=True)
    return [[j for j, t in enumerate(model.trainers) if t.priority == priority] for priority in priorities]
