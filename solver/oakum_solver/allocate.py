"""Decides how many nodes of which pool each trainer gets.

Where all nodes are alike that is one knapsack over sizes, solved exactly. Where pools differ, the sizes are
first decided as if they did not, which tells who gives nodes up; then the free nodes are handed out pool by
pool; and nobody giving anything up is always the other candidate. What these leave open, prices of the pools
bound, and the MILP over compositions closes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from oakum_solver.columns import Candidates, all_compositions, improve, promising
from oakum_solver.draft import Draft
from oakum_solver.errors import MilpError
from oakum_solver.filling import classes_of, fill_pools, give_minimum, split_again
from oakum_solver.knapsack import Relaxation, Sizes, exact, fill, proves_optimal, relax, total
from oakum_solver.objectives import LINEAR
from oakum_solver.pools import Composition
from oakum_solver.prices import Market, lower_bound
from oakum_solver.sizes import size_values, upper_values
from oakum_solver.value import Floats, ValueModel

_PRICE_STEPS, _PRICE_ROUNDS = 60, 3
WORTH_STARTING_S = 0.05
"""With less time left than this, no solver process is started: it would hardly have read its model."""


@dataclass(frozen=True)
class Decision:
    """What each trainer gets, and how good that is."""

    compositions: tuple[Composition, ...]
    values: tuple[float, ...]
    """Worth of each trainer's composition, in the objective's unit."""
    bound: float
    solver: str
    optimal: bool
    """Whether no plan is worth more, to rounding."""

    @property
    def value(self) -> float:
        """Worth of the whole."""
        return math.fsum(self.values)

    def bounded_by(self, bound: float) -> Decision:
        """The same, now that this bound is known, too."""
        return dataclasses.replace(self, bound=max(min(bound, self.bound), self.value))

    def judged(self) -> Decision:
        """The same, optimal where the bound proves it."""
        return dataclasses.replace(self, optimal=proves_optimal(self.bound, self.value))


def allocate(model: ValueModel, thorough: bool, left_s: Callable[[], float]) -> Decision:
    """The best decision found; `thorough` for policy `milp`, else greedy. `left_s` tells the seconds left."""
    alike = len(model.pools.pools) <= 1 and not model.typed and not model.problem.user_caps
    if alike or not model.problem.num_nodes or not model.trainers:
        found = _by_sizes(model, thorough)
    else:
        found = _by_pools(model, thorough, left_s)
    if not thorough or found.optimal or len(classes_of(model)) > 1 or left_s() < WORTH_STARTING_S:
        return found
    everything = all_compositions(model)
    if everything is not None:
        return _chosen(model, everything, dataclasses.replace(found, bound=math.inf, optimal=False), left_s)
    return _improved(model, found, left_s)


def _improved(model: ValueModel, known: Decision, left_s: Callable[[], float]) -> Decision:
    """The known decision or a better one, with a lower bound where prices give one.

    Rounds of prices and of plans made from them, then the MILP, each as long as the gap is worth it.
    """

    def go_on() -> bool:
        return left_s() > WORTH_STARTING_S

    market, prices, bounded = Market(model), _prices_by_seconds(model), _bounded_by_prices(model)
    reach = math.inf
    for _ in range(_PRICE_ROUNDS):
        prices, bound = lower_bound(market, prices, known.value, _PRICE_STEPS, go_on)
        if bounded:
            reach = min(reach, bound)
            known = known.bounded_by(market.safe_bound(prices, market.best(prices)))
        if not go_on() or _gap(known.value, reach) <= model.problem.gap:
            break
        guided = _guided(model, market, prices, go_on)
        if guided.value <= known.value:
            break
        known = dataclasses.replace(known, compositions=guided.compositions, values=guided.values, solver="prices")
    known = known.judged()
    if known.optimal or _gap(known.value, reach) <= model.problem.gap or not go_on():
        return known
    slack = max(0.0, market.bound(prices, market.best(prices)) - known.value)
    return _chosen(model, promising(model, market, prices, slack), known, left_s)


def _kept(model: ValueModel, compositions: Sequence[Composition]) -> tuple[bool, ...]:
    """Which guarantees are kept, the longest waiting first: what comes before any worth."""
    guaranteed = [j for j, trainer in enumerate(model.trainers) if trainer.guaranteed]
    return tuple(bool(compositions[j]) for j in sorted(guaranteed, key=lambda j: -model.trainers[j].waited_s))


def _gap(value: float, bound: float) -> float:
    """Relative distance of a value to a bound."""
    return (bound - value) / max(abs(bound), 1e-12) if bound < math.inf else math.inf


def _chosen(model: ValueModel, candidates: Candidates, known: Decision, left_s: Callable[[], float]) -> Decision:
    """The known decision, or the better one that the MILP makes of the candidates."""
    try:
        found = improve(model, candidates, known.compositions, known.values, left_s)
    except MilpError:
        return known.bounded_by(_bound(model)).judged()
    worth, known_worth = math.fsum(found.values), known.value
    if (_kept(model, found.compositions), worth) > (_kept(model, known.compositions), known_worth):
        known = dataclasses.replace(
            known, compositions=found.compositions, values=found.values, solver=model.problem.milp_solver
        )
    if candidates.complete:
        known = known.bounded_by(found.bound)
    return known.judged()


def _prices_by_seconds(model: ValueModel) -> Floats:
    """Prices to start from: each pool's in proportion to the seconds for which its nodes are productive."""
    seconds: Floats = model.joined_s.max(axis=0)
    if model.typed or not len(seconds):
        return np.zeros(len(seconds))
    values, weights, capacity = upper_values(model)
    relaxation = relax(values, capacity, weights)
    return seconds * (relaxation.price if relaxation is not None else 0.0)


def _linear(model: ValueModel) -> bool:
    """Whether worth is linear in the seconds of a node: no trainer can end within the look-ahead."""
    reach = [model.best_rate(j) * model.problem.look_ahead_s for j in range(len(model.trainers))]
    return model.problem.objective in LINEAR and bool((model.remaining[:, 0] >= np.array(reach)).all())


def _bounded_by_prices(model: ValueModel) -> bool:
    """Whether the prices' bound holds: it mixes pools by their mean, and no types."""
    return _linear(model) and not model.typed


def _guided(model: ValueModel, market: Market, prices: Floats, go_on: Callable[[], bool]) -> Decision:
    """What the prices suggest, as far as there are nodes, filled up."""
    draft, best = Draft(model), market.best(prices)
    for j in np.flatnonzero((best.pool < 0) & (best.nodes < market.held)).tolist():
        if not (model.trainers[j].guaranteed and best.nodes[j] == 0):
            draft.shrink(j, int(best.nodes[j]))
    stay = market.net_of_keeping(prices)[np.arange(len(market.held)), np.minimum(market.held, model.largest)]
    eager = np.argsort(-(best.surplus - np.where(np.isfinite(stay), stay, 0.0)), kind="stable")
    for j in eager.tolist():
        pool = int(best.pool[j])
        more = min(int(best.nodes[j]), draft.free[pool], draft.room_of_user(j)) if pool >= 0 else 0
        if more > 0 and sum(draft.after[j].values()) + more >= model.trainers[j].min_nodes:
            draft.add(j, pool, more)
    found = _filled(model, draft, thorough=True)
    split_again(draft, list(range(len(draft.after))), go_on)
    return dataclasses.replace(found, compositions=tuple(draft.after), values=tuple(draft.values()))


def _filled(model: ValueModel, draft: Draft, thorough: bool) -> Decision:
    """A draft made feasible and filled up; its bound is not known."""
    classes = classes_of(model)
    draft.obey_limits()
    fill_pools(draft, classes, thorough)
    draft.drop_below_minimum()
    fill_pools(draft, classes, thorough)
    return Decision(tuple(draft.after), tuple(draft.values()), math.inf, "greedy", optimal=False)


def _by_sizes(model: ValueModel, thorough: bool) -> Decision:
    """All nodes are alike: sizes are all there is to decide."""
    values = size_values(model)
    sizes, bound, solver, optimal = _sizes(model, values, thorough)
    worths = values[np.arange(len(values)), sizes].tolist()
    compositions = tuple({0: size} if size else {} for size in sizes.tolist())
    return Decision(compositions, tuple(worths), max(bound, math.fsum(worths)), solver, optimal)


def _sizes(model: ValueModel, values: Floats, thorough: bool) -> tuple[Sizes, float, str, bool]:
    """(sizes, bound, solver, whether optimal), one class of priority after the other."""
    sizes = np.zeros(len(values), dtype=np.int64)
    kept = _guaranteed(model)
    left, bound, solver, optimal = model.problem.num_nodes - sum(kept.values()), 0.0, "greedy", True
    room = dict(model.problem.user_caps)
    for trainers in classes_of(model):
        rows = values[trainers]
        for row, j in enumerate(trainers):
            most = room.get(model.trainers[j].user or "", model.problem.num_nodes)
            rows[row, max(0, most) + 1 :] = -np.inf
        for row, j in enumerate(trainers):
            if j in kept and np.isfinite(rows[row, kept[j] :]).any():
                rows[row, : kept[j]] = -np.inf
            left += kept.pop(j, 0)
        held = np.array([model.held[j] for j in trainers], dtype=np.int64)
        found, relaxation = _greedy_sizes(rows, held, left)
        value = total(rows, found)
        if proves_optimal(relaxation.bound, value):
            bound += value
        elif thorough and (better := exact(rows, left, found, relaxation)) is not None:
            found, solver = better, "exact"
            bound += total(rows, found)
        else:
            optimal = False
            bound += relaxation.bound
        sizes[trainers] = found
        left -= int(found.sum())
        for row, j in enumerate(trainers):
            if (user := model.trainers[j].user or "") in room:
                room[user] -= int(found[row])
    return sizes, bound, solver, optimal


def _guaranteed(model: ValueModel) -> dict[int, int]:
    """Trainers that must not be left without nodes -> their minimum; the longest waiting first, while they fit."""
    left, chosen = model.problem.num_nodes, {}
    for j, trainer in sorted(enumerate(model.trainers), key=lambda item: -item[1].waited_s):
        if trainer.guaranteed and trainer.min_nodes <= left:
            chosen[j] = trainer.min_nodes
            left -= trainer.min_nodes
    return chosen


def _greedy_sizes(values: Floats, held: Sizes, num_nodes: int) -> tuple[Sizes, Relaxation]:
    """The relaxation's sizes, filled up; or everyone staying, filled up, where staying is worth more already."""
    relaxation = relax(values, num_nodes)
    assert relaxation is not None, "guarantees are given only as far as they fit"
    filled = fill(values, relaxation.sizes, num_nodes)
    allowed = np.isfinite(values) & (np.arange(values.shape[1]) <= held[:, None])
    staying = np.where(allowed, np.arange(values.shape[1]), -1).max(axis=1)
    if (staying >= 0).all() and staying.sum() <= num_nodes and total(values, staying) > total(values, filled):
        filled = fill(values, staying, num_nodes)
    return filled, relaxation


def _by_pools(model: ValueModel, thorough: bool, left_s: Callable[[], float]) -> Decision:
    """Pools differ, or nodes do, or users have caps."""
    giving: dict[int, int] = {}
    if not model.typed:
        sizes, _, _, _ = _sizes(model, size_values(model), thorough=False)
        giving = {j: size for j, size in enumerate(sizes.tolist()) if size < model.held[j]}
    found: list[Decision] = []
    for exactly in (False, True) if thorough else (False,):
        for shrinking in ({}, giving) if giving else ({},):
            if found and left_s() < WORTH_STARTING_S:
                break
            draft = Draft(model)
            for j, size in shrinking.items():
                draft.shrink(j, size)
            found.append(_filled(model, draft, exactly))
    if any(trainer.min_nodes > max(model.pools.free, default=0) for trainer in model.trainers):
        draft = Draft(model)
        for trainers in classes_of(model):
            give_minimum(draft, trainers, forced=False)
        found.append(_filled(model, draft, thorough))
    best = max(found, key=lambda decision: _by_class(model, decision))
    return best.bounded_by(_bound(model)).judged()


def _by_class(model: ValueModel, decision: Decision) -> tuple[tuple[bool, ...], list[float]]:
    """Guarantees kept, then the worth of each class of priority, the highest first."""
    worths = [math.fsum(decision.values[j] for j in trainers) for trainers in classes_of(model)]
    return _kept(model, decision.compositions), worths


def _bound(model: ValueModel) -> float:
    """What no plan is worth more than, quickly."""
    if model.typed or not _linear(model):
        return loose_bound(model)
    values, weights, capacity = upper_values(model)
    relaxation = relax(values, capacity, weights)
    return loose_bound(model) if relaxation is None else relaxation.bound


def loose_bound(model: ValueModel) -> float:
    """What the trainers would be worth together if each had all nodes, for the whole look-ahead, for nothing.

    One that holds more than it may have trains on these until the plan is carried out.
    """
    most = [max(1, model.most(j)) for j in range(len(model.trainers))]
    fastest = [max(float(model.now[j, 0]), model.best_rate(j) if model.most(j) else 0.0) for j in range(len(most))]
    samples = np.array(fastest).reshape(-1, 1) * model.problem.look_ahead_s
    nodes = np.arange(max(most, default=1) + 1)
    worth = model.worth(
        np.broadcast_to(samples, (len(most), len(nodes))), np.broadcast_to(nodes, (len(most), len(nodes)))
    )
    return float(worth.max(axis=1).sum()) if len(most) else 0.0
