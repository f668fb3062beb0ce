"""Selects the compositions among which the MILP chooses, and improves a solution by that choice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pulp

from oakum_solver.lagrangian import LagrangianDual
from oakum_solver.milp import CompositionOption, choose
from oakum_solver.pools import Composition
from oakum_solver.value import Floats, ValueModel

_MOST_CHOICES = 4000
"""Most compositions that the MILP gets: PuLP writes about ten thousand binaries a second."""
_MOST_OF_ALL = 600
"""Up to this many compositions of all trainers together, the MILP gets every one."""


@dataclass(frozen=True)
class Improvement:
    """The selection that the MILP made: each trainer's composition with its value, and a bound."""

    compositions: tuple[Composition, ...]
    values: tuple[float, ...]
    bound: float
    """No selection among the candidates has a larger value."""
    variables: Mapping[str, float]
    """What the solver found for every variable, by its name."""


Extend = Callable[
    [pulp.LpProblem, Sequence[pulp.LpVariable], Sequence[CompositionOption], Sequence[Composition]], None
]
"""Adds constraints to the MILP, given it, the variable of each choice, the choices and their compositions."""


@dataclass(frozen=True)
class Candidates:
    """For each trainer, the compositions from which the MILP chooses one."""

    compositions: list[list[Composition]]
    complete: bool
    """Whether every plan that could be better than the known one can be made of these compositions."""


def improve_by_milp(
    model: ValueModel,
    candidates: Candidates,
    incumbent: tuple[Composition, ...],
    values: tuple[float, ...],
    left_s: Callable[[], float],
    extend: Extend | None = None,
) -> Improvement:
    """The best selection among the candidates and the compositions of the known solution `incumbent`.

    `values` are the values of the incumbent's compositions; `extend` adds constraints. Raises `MilpError` where
    the solver gives no usable answer.
    """
    compositions: list[Composition] = []
    choices: list[CompositionOption] = []
    for j, composition in enumerate(incumbent):
        broken = model.trainers[j].guaranteed and not composition and candidates.compositions[j]
        for candidate in _distinct([*([] if broken else [composition]), *candidates.compositions[j]]):
            compositions.append(candidate)
            value = values[j] if candidate == composition else model.value(j, candidate)
            choices.append(CompositionOption(j, _use(model, j, candidate), value))
    capacities = {str(number): pool.size for number, pool in enumerate(model.pools.pools)}
    capacities |= {f"user {user}": cap for user, cap in model.problem.user_caps.items()}
    gap = 0.0 if candidates.complete else model.problem.gap

    def extension(lp: pulp.LpProblem, chosen: Sequence[pulp.LpVariable]) -> None:
        if extend is not None:
            extend(lp, chosen, choices, compositions)

    answer = choose(choices, capacities, dict(enumerate(values)), model.problem, left_s, gap, extension)
    picked = {choices[index].trainer_index: index for index in answer.chosen}
    return Improvement(
        tuple(compositions[picked[j]] for j in range(len(incumbent))),
        tuple(choices[picked[j]].value for j in range(len(incumbent))),
        answer.bound,
        answer.values,
    )


def all_compositions(model: ValueModel) -> Candidates | None:
    """For each trainer every composition that it may get without giving up nodes and taking others at once; None
    where there are more than `_MOST_OF_ALL` in all."""
    counts = [_count(model, j) for j in range(len(model.trainers))]
    if sum(counts) > _MOST_OF_ALL:
        return None
    return Candidates([list(_all(model, j)) for j in range(len(model.trainers))], complete=True)


def _ranges(model: ValueModel, j: int) -> tuple[list[range], list[range]]:
    """Numbers of nodes that trainer j may have of each pool: first if it shrinks, then if it grows."""
    held, high = model.pools.held[j], model.trainers[j].max_nodes
    fewer = [range(held.get(pool, 0) + 1) for pool in range(len(model.pools.pools))]
    most = [
        min(pool.size, max(high, held.get(number, 0))) if model.may_have(j, number) else held.get(number, 0)
        for number, pool in enumerate(model.pools.pools)
    ]
    more = [range(held.get(pool, 0), count + 1) for pool, count in enumerate(most)]
    return fewer, more


def _count(model: ValueModel, j: int) -> float:
    return sum(math.prod(len(counts) for counts in ranges) for ranges in _ranges(model, j))


def _all(model: ValueModel, j: int) -> Iterator[Composition]:
    trainer = model.trainers[j]
    for ranges in _ranges(model, j):
        for counts in itertools.product(*ranges):
            composition = {pool: count for pool, count in enumerate(counts) if count}
            nodes = sum(counts)
            if (nodes == 0 and not trainer.guaranteed) or trainer.allows(nodes):
                yield composition


def promising_compositions(model: ValueModel, dual: LagrangianDual, prices: Floats, slack: float) -> Candidates:
    """The most promising compositions at `prices` that keep, give up, or take new nodes of a single pool.

    A composition whose value less price is more than `slack` below the trainer's best one is left out: no plan
    that contains it is better than the known plan. `slack` is the dual's bound less the known plan's value.
    """
    best = dual.best(prices).surplus[:, None]
    forbidden = np.array([trainer.guaranteed for trainer in model.trainers])
    kept = best - dual.net_of_keeping(prices)
    kept[forbidden, 0] = np.inf
    held_price = (dual.held_counts @ prices)[:, None]
    lost = [(kept, -1)]
    for pool, table in enumerate(dual.grow):
        room = dual.sizes[pool] - dual.held_counts[:, pool]
        short = best - (table - prices[pool] * dual.more - held_price)
        lost.append((np.where(dual.more <= room[:, None], short, np.inf), pool))
    entries = []
    for table, pool in lost:
        for j, nodes in zip(*np.nonzero(table <= slack), strict=True):
            entries.append((float(table[j, nodes]), int(j), pool, int(nodes)))
    entries.sort()
    compositions = [list(_mixtures(model, j)) for j in range(len(model.trainers))]
    for _, j, pool, nodes in entries[:_MOST_CHOICES]:
        compositions[j].append(_composition(model, j, pool, nodes))
    complete = len(entries) <= _MOST_CHOICES and len(dual.sizes) <= 1 and not model.typed
    return Candidates(compositions, complete)


def _composition(model: ValueModel, j: int, pool: int, nodes: int) -> Composition:
    if pool < 0:
        return model.kept(j, nodes)
    held = model.pools.held[j]
    return {**held, pool: held.get(pool, 0) + nodes}


def _use(model: ValueModel, j: int, composition: Composition) -> dict[str, int]:
    use = {str(pool): count for pool, count in composition.items()}
    user = model.trainers[j].user
    if user is not None and user in model.problem.user_caps:
        use[f"user {user}"] = sum(composition.values())
    return use


def _distinct(candidates: list[Composition]) -> Iterator[Composition]:
    distinct = set()
    for composition in candidates:
        key = tuple(sorted(composition.items()))
        if key not in distinct:
            distinct.add(key)
            yield composition


def _grid(most: int) -> Iterator[int]:
    """Counts from 1 to `most`: all up to 8, then about 20 % apart. A finer grid would mean thousands of
    binaries."""
    count = 1
    while count < most:
        yield count
        count = max(count + 1, int(count * 1.2)) if count >= 8 else count + 1
    if most > 0:
        yield most


def _mixtures(model: ValueModel, j: int) -> Iterator[Composition]:
    """Compositions of two node types for trainer j, if it may mix types and holds no nodes yet."""
    trainer, pools = model.trainers[j], model.pools.pools
    if not trainer.mixes_types or trainer.curves_by_type is None or model.held[j]:
        return
    high = min(trainer.max_nodes, model.problem.num_nodes)
    for first, a in enumerate(pools):
        for second in range(first + 1, len(pools)):
            if a.node_type == pools[second].node_type:
                continue
            for x in _grid(min(a.size, high - 1)):
                others = [size - x for size in trainer.sizes] or _grid(min(pools[second].size, high - x))
                for y in others:
                    mixture = {first: x, second: y}
                    if not 0 < y <= pools[second].size or not trainer.allows(x + y):
                        continue
                    if model.rate(j, mixture) > 0:
                        yield mixture
