"""Makes a solution one that can be laid out on hosts, for trainers whose fragments have several slots of one host.

A solution in counts bounds every plan from above, whatever hosts it is laid out on. If its counts can be laid out,
nothing is lost. Otherwise trainers with bundles get fewer, which is a first plan, and the MILP over compositions
chooses again with the conditions of `bundles` among its own, so that small problems stay exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from oakum_solver.allocate import WORTH_STARTING_S, Solution, first_prices, guarantees_kept
from oakum_solver.bundles import Cells, Layout
from oakum_solver.draft import Draft
from oakum_solver.errors import MilpError
from oakum_solver.free_nodes import hand_out_free_nodes, priority_classes
from oakum_solver.lagrangian import LagrangianDual, tighten_bound
from oakum_solver.milp_candidates import Candidates, all_compositions, improve_by_milp, promising_compositions
from oakum_solver.pools import Composition
from oakum_solver.value import ValueModel

_PRICE_STEPS = 60
_MOST_TRIALS = 200
"""Most compositions of one trainer that are tried, the largest first."""


def in_bundles(model: ValueModel, counts: Solution, thorough: bool, left_s: Callable[[], float]) -> Solution:
    """The best solution found, with the nodes that it grants. `counts` is a solution for which hosts were not
    looked at; `thorough` and `left_s` as for `allocate`."""
    cells = Cells(model)
    layout = cells.place(counts.compositions)
    if layout is not None:
        return dataclasses.replace(counts, grants=cells.named(counts.compositions, layout))
    best, layout = _with_fewer(model, cells, counts)
    if thorough and len(priority_classes(model)) <= 1 and left_s() > WORTH_STARTING_S:
        best, layout = _improved(model, cells, best, layout, left_s)
    return dataclasses.replace(best, grants=cells.named(best.compositions, layout))


def _with_fewer(model: ValueModel, cells: Cells, counts: Solution) -> tuple[Solution, Layout]:
    """A solution that can be laid out, in which trainers with bundles have fewer nodes than in `counts`, and
    others what that leaves."""
    after = [dict(composition) for composition in counts.compositions]
    growing = [j for j, trainer in enumerate(model.trainers) if trainer.bundle != 1 and _grows(model, j, after[j])]
    for j in growing:
        held = model.held[j]
        after[j] = dict(model.pools.held[j]) if held and model.trainers[j].allows(held) else {}
    layout = cells.place(after)
    if layout is None:  # bundles of several sizes or pools, of which no number that it wants can be kept
        after = [{} if t.bundle != 1 else one for t, one in zip(model.trainers, after, strict=True)]
        layout = cells.place(after)
    assert layout is not None, "single slots can always be laid out"
    by_guarantee = {j: rank for rank, j in enumerate(model.by_guarantee())}
    order = sorted(
        growing, key=lambda j: (-model.trainers[j].priority, by_guarantee.get(j, len(model.trainers)), j)
    )
    for j in order:
        for trial in _smaller(model, j, counts.compositions[j]):
            tried = [*after[:j], trial, *after[j + 1 :]]
            if (found := cells.place(tried)) is not None:
                after, layout = tried, found
                break
    filled = _filled(model, after)
    if (found := cells.place(filled)) is not None:
        after, layout = filled, found
    values = tuple(model.values(after))
    solution = Solution(tuple(after), values, math.inf, counts.solver, optimal=False)
    return solution.with_bound(counts.bound).with_proof(), layout


def _grows(model: ValueModel, j: int, after: Composition) -> bool:
    return sum(after.values()) > model.held[j]


def _smaller(model: ValueModel, j: int, wanted: Composition) -> Iterator[Composition]:
    """Compositions with which trainer j grows to fewer nodes than `wanted` and gains from it, the largest first;
    `wanted` is the first of them."""
    trainer, held, tried = model.trainers[j], model.pools.held[j], 0
    yield wanted
    stays = -math.inf if trainer.guaranteed else model.value(j, dict(held))
    pools = sorted(range(len(model.pools.pools)), key=lambda pool: -wanted.get(pool, 0))
    size = sum(wanted.values())
    while (size := trainer.fitting(size)) > model.held[j]:
        for pool in pools:
            composition = {**held, pool: held.get(pool, 0) + size - model.held[j]}
            if composition[pool] > model.pools.pools[pool].size or not model.may_have(j, pool):
                continue
            if model.value(j, composition) > stays:
                yield composition
                tried += 1
        if tried > _MOST_TRIALS:
            return
        size -= 1


def _filled(model: ValueModel, after: Sequence[Composition]) -> list[Composition]:
    """The compositions, with nodes that are free now handed out to trainers without bundles that do not shrink."""
    draft = Draft(model)
    used = [sum(one.get(pool, 0) for one in after) for pool in range(len(model.pools.pools))]
    free = [pool.size - count for pool, count in zip(model.pools.pools, used, strict=True)]
    draft.restore([dict(composition) for composition in after], free)
    for j, trainer in enumerate(model.trainers):
        draft.shrunk[j] = trainer.bundle != 1 or sum(after[j].values()) < model.held[j]
    hand_out_free_nodes(draft, priority_classes(model), thorough=False)
    return draft.after


def _improved(
    model: ValueModel, cells: Cells, best: Solution, layout: Layout, left_s: Callable[[], float]
) -> tuple[Solution, Layout]:
    """The better of the known solution and the MILP's, with its layout."""
    candidates = all_compositions(model) or _promising(model, best, left_s)
    try:
        better = improve_by_milp(model, candidates, best.compositions, best.values, left_s, cells.constrain)
    except MilpError:
        return best, layout
    kept, best_kept = (guarantees_kept(model, each.compositions) for each in (better, best))
    if (kept, math.fsum(better.values)) > (best_kept, best.value):
        name = model.problem.milp_solver
        best = dataclasses.replace(best, compositions=better.compositions, values=better.values, solver=name)
        layout = cells.read(better.variables)
    if candidates.complete:
        best = best.with_bound(better.bound)
    return best.with_proof(), layout


def _promising(model: ValueModel, best: Solution, left_s: Callable[[], float]) -> Candidates:
    """The compositions that the prices of the pools leave in the running, hosts not looked at."""
    dual = LagrangianDual(model)
    prices, _ = tighten_bound(
        dual, first_prices(model), best.value, _PRICE_STEPS, lambda: left_s() > WORTH_STARTING_S
    )
    slack = max(0.0, dual.bound(prices, dual.best(prices)) - best.value)
    return promising_compositions(model, dual, prices, slack)
