"""Decides how many nodes of which pool each trainer gets.

If all nodes are alike, that is one knapsack over sizes, solved exactly. If pools differ, a first knapsack ignores
the difference and tells which trainers give nodes up; then the free nodes are handed out pool by pool. A second
candidate, in which no trainer gives nodes up, is made likewise, and the better one counts. Lagrangian prices of
the pools then bound every plan from above, and the MILP over compositions searches what gap is left.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from oakum_solver.draft import Draft
from oakum_solver.errors import MilpError
from oakum_solver.free_nodes import gather_next_size, hand_out_free_nodes, priority_classes, resplit_pools
from oakum_solver.knapsack import Relaxation, Sizes, exact, fill, proves_optimal, relax, total
from oakum_solver.lagrangian import LagrangianDual, tighten_bound
from oakum_solver.milp_candidates import Candidates, all_compositions, improve_by_milp, promising_compositions
from oakum_solver.objectives import LINEAR
from oakum_solver.pools import Composition
from oakum_solver.size_values import size_values, upper_values
from oakum_solver.value import Floats, ValueModel

_PRICE_STEPS, _PRICE_ROUNDS = 60, 3
WORTH_STARTING_S = 0.05
"""With fewer seconds left, no solver process is started: it would hardly have read its model."""


@dataclass(frozen=True)
class Solution:
    """A composition for each trainer, with its value and an upper bound on the value of every plan."""

    compositions: tuple[Composition, ...]
    values: tuple[float, ...]
    """Value of each trainer's composition, in the objective's unit."""
    bound: float
    """No plan has a larger value; infinite while nothing is known."""
    solver: str
    """The method that found it, as `Plan.solver`."""
    optimal: bool
    """Whether the bound proves that no plan is worth more, rounding aside."""
    grants: Mapping[str, tuple[str, ...]] | None = None
    """Trainer id -> its nodes, where it matters for some trainer which slots are on one host; else None."""

    @property
    def value(self) -> float:
        """Sum of the trainers' values."""
        return math.fsum(self.values)

    def with_bound(self, bound: float) -> Solution:
        """A copy whose bound is the smaller of its own and `bound`, but never below its value."""
        return dataclasses.replace(self, bound=max(min(bound, self.bound), self.value))

    def with_proof(self) -> Solution:
        """A copy whose `optimal` says whether its bound proves it optimal."""
        return dataclasses.replace(self, optimal=proves_optimal(self.bound, self.value))


def allocate(model: ValueModel, thorough: bool, left_s: Callable[[], float]) -> Solution:
    """The best solution found within the time left.

    `thorough` asks for exact knapsacks, prices and the MILP (policy `milp`); otherwise the search is greedy.
    `left_s()` returns the seconds left.
    """
    alike = len(model.pools.pools) <= 1 and not model.typed and not model.problem.user_caps
    if alike or not model.problem.num_nodes or not model.trainers:
        solution = _by_sizes(model, thorough)
    else:
        solution = _by_pools(model, thorough, left_s)
    if not thorough or solution.optimal or len(priority_classes(model)) > 1 or left_s() < WORTH_STARTING_S:
        return solution
    everything = all_compositions(model)
    if everything is not None:
        return _chosen(model, everything, dataclasses.replace(solution, bound=math.inf, optimal=False), left_s)
    return _improved(model, solution, left_s)


def _improved(model: ValueModel, best: Solution, left_s: Callable[[], float]) -> Solution:
    """Improve on the known solution, and tighten its bound where prices give a valid one.

    Each round computes prices and builds a plan from them; then the MILP runs. The search stops as soon as the
    relative gap is at most `Problem.gap` or the time is up.
    """

    def go_on() -> bool:
        return left_s() > WORTH_STARTING_S

    dual, prices, bounded = LagrangianDual(model), first_prices(model), _bounded_by_prices(model)
    reach = math.inf
    for _ in range(_PRICE_ROUNDS):
        prices, bound = tighten_bound(dual, prices, best.value, _PRICE_STEPS, go_on)
        if bounded:
            reach = min(reach, bound)
            best = best.with_bound(dual.safe_bound(prices, dual.best(prices)))
        if not go_on() or _gap(best.value, reach) <= model.problem.gap:
            break
        guided = _guided(model, dual, prices, go_on)
        if guided.value <= best.value:
            break
        best = dataclasses.replace(best, compositions=guided.compositions, values=guided.values, solver="prices")
    best = best.with_proof()
    if best.optimal or _gap(best.value, reach) <= model.problem.gap or not go_on():
        return best
    slack = max(0.0, dual.bound(prices, dual.best(prices)) - best.value)
    return _chosen(model, promising_compositions(model, dual, prices, slack), best, left_s)


def guarantees_kept(model: ValueModel, compositions: Sequence[Composition]) -> tuple[bool, ...]:
    """For each guaranteed trainer, in order of their guarantees: whether it gets nodes.

    Solutions are compared by these flags first and by value second.
    """
    return tuple(bool(compositions[j]) for j in model.by_guarantee())


def _gap(value: float, bound: float) -> float:
    """(bound - value) / |bound|; infinite where no bound is known."""
    return (bound - value) / max(abs(bound), 1e-12) if bound < math.inf else math.inf


def _chosen(model: ValueModel, candidates: Candidates, best: Solution, left_s: Callable[[], float]) -> Solution:
    """The better of the known solution and the MILP's selection among the candidates, with a bound; the known one
    where the MILP solver fails."""
    try:
        better = improve_by_milp(model, candidates, best.compositions, best.values, left_s)
    except MilpError:
        return best.with_bound(_bound(model)).with_proof()
    worth, best_worth = math.fsum(better.values), best.value
    kept, best_kept = (guarantees_kept(model, each.compositions) for each in (better, best))
    if (kept, worth) > (best_kept, best_worth):
        best = dataclasses.replace(
            best,
            compositions=better.compositions,
            values=better.values,
            solver=model.problem.milp_solver,
        )
    if candidates.complete:
        best = best.with_bound(better.bound)
    return best.with_proof()


def first_prices(model: ValueModel) -> Floats:
    """Prices of the pools from which to begin, shape (pools,): the knapsack's price of a productive second
    times the most seconds for which the pool's nodes can be productive. Zeros where trainers have curves by
    node type."""
    seconds: Floats = model.joined_s.max(axis=0)
    if model.typed or not len(seconds):
        return np.zeros(len(seconds))
    values, weights, capacity = upper_values(model)
    relaxation = relax(values, capacity, weights)
    return seconds * (relaxation.price if relaxation is not None else 0.0)


def _linear(model: ValueModel) -> bool:
    """Whether value is linear in a node's productive seconds: the objective is, and no trainer can end within the
    look-ahead."""
    reach = [model.best_rate(j) * model.problem.look_ahead_s for j in range(len(model.trainers))]
    return model.problem.objective in LINEAR and bool((model.remaining[:, 0] >= np.array(reach)).all())


def _bounded_by_prices(model: ValueModel) -> bool:
    """Whether the Lagrangian bound is valid: it needs a linear objective and one curve for all node types."""
    return _linear(model) and not model.typed


def _guided(model: ValueModel, dual: LagrangianDual, prices: Floats, go_on: Callable[[], bool]) -> Solution:
    """A solution made from the best compositions at `prices`.

    Trainers shrink and grow as the prices suggest, those with the most to gain first, as far as nodes are there;
    the rest is handed out greedily.
    """
    draft, best = Draft(model), dual.best(prices)
    for j in np.flatnonzero((best.pool < 0) & (best.nodes < dual.held)).tolist():
        if not (model.trainers[j].guaranteed and best.nodes[j] == 0):
            draft.shrink(j, int(best.nodes[j]))
    stay = dual.net_of_keeping(prices)[np.arange(len(dual.held)), np.minimum(dual.held, model.largest)]
    eager = np.argsort(-(best.surplus - np.where(np.isfinite(stay), stay, 0.0)), kind="stable")
    for j in eager.tolist():
        pool = int(best.pool[j])
        more = min(int(best.nodes[j]), draft.free[pool], draft.room_under_cap(j)) if pool >= 0 else 0
        held = sum(draft.after[j].values())
        if more > 0 and (more := model.trainers[j].fitting(held + more) - held) > 0:
            draft.add(j, pool, more)
    filled = _filled(model, draft, thorough=True)
    resplit_pools(draft, list(range(len(draft.after))), go_on)
    return dataclasses.replace(filled, compositions=tuple(draft.after), values=tuple(draft.values()))


def _filled(model: ValueModel, draft: Draft, thorough: bool) -> Solution:
    """A solution made from the draft: trainers beyond their limits shrink, then free nodes are handed out. Its
    bound is infinite. Changes the draft."""
    classes = priority_classes(model)
    draft.shrink_to_limits()
    hand_out_free_nodes(draft, classes, thorough)
    draft.drop_unusable()
    hand_out_free_nodes(draft, classes, thorough)
    return Solution(tuple(draft.after), tuple(draft.values()), math.inf, "greedy", optimal=False)


def _by_sizes(model: ValueModel, thorough: bool) -> Solution:
    """Solve a problem whose nodes are all alike, so that only sizes are to be decided. Returns the best
    solution found."""
    values = size_values(model)
    sizes, bound, solver, optimal = _sizes(model, values, thorough)
    worths = values[np.arange(len(values)), sizes].tolist()
    compositions = tuple({0: size} if size else {} for size in sizes.tolist())
    return Solution(compositions, tuple(worths), max(bound, math.fsum(worths)), solver, optimal)


def _sizes(model: ValueModel, values: Floats, thorough: bool) -> tuple[Sizes, float, str, bool]:
    """(sizes, bound, solver, whether optimal), decided one priority class after the other.

    `values` has the shape (J, M + 1). Guaranteed minimums are set aside first.
    """
    sizes = np.zeros(len(values), dtype=np.int64)
    kept = _guaranteed(model)
    remaining, bound, solver, optimal = model.problem.num_nodes - sum(kept.values()), 0.0, "greedy", True
    room = dict(model.problem.user_caps)
    for trainers in priority_classes(model):
        rows = values[trainers]
        for row, j in enumerate(trainers):
            most = room.get(model.trainers[j].user or "", model.problem.num_nodes)
            rows[row, max(0, most) + 1 :] = -np.inf
        for row, j in enumerate(trainers):
            if j in kept and np.isfinite(rows[row, kept[j] :]).any():
                rows[row, : kept[j]] = -np.inf
            remaining += kept.pop(j, 0)
        held = np.array([model.held[j] for j in trainers], dtype=np.int64)
        chosen, relaxation = _greedy_sizes(rows, held, remaining)
        value = total(rows, chosen)
        if proves_optimal(relaxation.bound, value):
            bound += value
        elif thorough and (better := exact(rows, remaining, chosen, relaxation)) is not None:
            chosen, solver = better, "exact"
            bound += total(rows, chosen)
        else:
            optimal = False
            bound += relaxation.bound
        sizes[trainers] = chosen
        remaining -= int(chosen.sum())
        for row, j in enumerate(trainers):
            if (user := model.trainers[j].user or "") in room:
                room[user] -= int(chosen[row])
    return sizes, bound, solver, optimal


def _guaranteed(model: ValueModel) -> dict[int, int]:
    """Index of each guaranteed trainer whose minimum fits -> that minimum, in order of their guarantees."""
    remaining, chosen = model.problem.num_nodes, {}
    for j in model.by_guarantee():
        if (minimum := model.trainers[j].min_nodes) <= remaining:
            chosen[j] = minimum
            remaining -= minimum
    return chosen


def _greedy_sizes(values: Floats, held: Sizes, num_nodes: int) -> tuple[Sizes, Relaxation]:
    """Sizes from the knapsack's relaxation, with left-over nodes handed out greedily, and that relaxation.

    If keeping all present sizes is worth more, the greedy hand-out starts from these instead.
    """
    relaxation = relax(values, num_nodes)
    assert relaxation is not None, "guarantees are given only as far as they fit"
    filled = fill(values, relaxation.sizes, num_nodes)
    allowed = np.isfinite(values) & (np.arange(values.shape[1]) <= held[:, None])
    staying = np.where(allowed, np.arange(values.shape[1]), -1).max(axis=1)
    if (staying >= 0).all() and staying.sum() <= num_nodes and total(values, staying) > total(values, filled):
        filled = fill(values, staying, num_nodes)
    return filled, relaxation


def _by_pools(model: ValueModel, thorough: bool, left_s: Callable[[], float]) -> Solution:
    """Solve a problem with several pools, curves by node type or caps of users. Returns the best solution
    found."""
    giving: dict[int, int] = {}
    if not model.typed:
        sizes, _, _, _ = _sizes(model, size_values(model), thorough=False)
        giving = {j: size for j, size in enumerate(sizes.tolist()) if size < model.held[j]}
    solutions: list[Solution] = []
    for exactly in (False, True) if thorough else (False,):
        for shrinking in ({}, giving) if giving else ({},):
            if solutions and left_s() < WORTH_STARTING_S:
                break
            draft = Draft(model)
            for j, size in shrinking.items():
                draft.shrink(j, size)
            solutions.append(_filled(model, draft, exactly))
    most_free = max(model.pools.free, default=0)
    if any(
        trainer.min_nodes > most_free or (trainer.sizes and (trainer.following(held) or 0) - held > most_free)
        for trainer, held in zip(model.trainers, model.held, strict=True)
    ):
        draft = Draft(model)
        for trainers in priority_classes(model):
            gather_next_size(draft, trainers, forced=False)
        solutions.append(_filled(model, draft, thorough))
    best = max(solutions, key=lambda solution: _by_class(model, solution))
    return best.with_bound(_bound(model)).with_proof()


def _by_class(model: ValueModel, solution: Solution) -> tuple[tuple[bool, ...], list[float]]:
    """Sort key of a solution: guarantees kept, then the value of each priority class, the highest class first."""
    worths = [math.fsum(solution.values[j] for j in trainers) for trainers in priority_classes(model)]
    return guarantees_kept(model, solution.compositions), worths


def _bound(model: ValueModel) -> float:
    """A quickly computed upper bound on the value of every plan."""
    if model.typed or not _linear(model):
        return loose_bound(model)
    values, weights, capacity = upper_values(model)
    relaxation = relax(values, capacity, weights)
    return loose_bound(model) if relaxation is None else relaxation.bound


def loose_bound(model: ValueModel) -> float:
    """Upper bound on the value of every plan: the sum of each trainer's value with all nodes that it may have and
    without stalls.

    A trainer that holds more nodes than it may have counts at its present rate, because it trains on them until
    the plan is carried out.
    """
    most = [max(1, model.most(j)) for j in range(len(model.trainers))]
    fastest = [max(float(model.now[j, 0]), model.best_rate(j) if model.most(j) else 0.0) for j in range(len(most))]
    samples = np.array(fastest).reshape(-1, 1) * model.problem.look_ahead_s
    nodes = np.arange(max(most, default=1) + 1)
    worth = model.worth(
        np.broadcast_to(samples, (len(most), len(nodes))), np.broadcast_to(nodes, (len(most), len(nodes)))
    )
    return float(worth.max(axis=1).sum()) if len(most) else 0.0
