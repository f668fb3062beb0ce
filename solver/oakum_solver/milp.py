"""The MILP: one choice for each trainer within the nodes of every pool, solved through PuLP by CBC or HiGHS.

    maximise    sum_c value_c x_c
    subject to  sum_{c of trainer j} x_c = 1  for each trainer j,
                sum_c use_cp x_c <= size_p  for each pool p,
                sum_{c of u's trainers} nodes_c x_c <= cap_u  for each user u with a cap,      x_c binary

A choice c is a composition: an integer count of nodes of each pool for one trainer. Its value is exact and
includes stalls, start-up, minimum sizes, mixed types and departures. Curves, concave or not, therefore need
neither SOS2 nor big-M constraints, and the linear relaxation is almost integral. The published model (BFTrainer,
arXiv:2106.12091) names nodes and so needs about 2JN binaries and big-M constraints. Here `node_assignment` names
the nodes afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pulp

from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from oakum_solver.highs import run_highs
from oakum_solver.problem import Problem

_AFTERWARDS_S = 0.02
_COEFFICIENT = 1e4
"""Largest coefficient that the objective is scaled to: CBC ignores absolute differences below 1e-5."""


@dataclass(frozen=True)
class CompositionOption:
    """One composition that a trainer may get."""

    trainer_index: int
    use: dict[str, int]
    """Name of a capacity (a pool, or a user with a cap) -> nodes that the choice takes of it."""
    value: float


@dataclass(frozen=True)
class MilpAnswer:
    """The MILP's answer: the choice selected for each trainer, the value of the selection, and a bound on the
    best value."""

    chosen: tuple[int, ...]
    """Indexes of the selected choices, one for each trainer."""
    value: float
    bound: float
    """No selection among the choices has a larger value."""
    values: Mapping[str, float]
    """What the solver found for every variable, by its name."""


Extension = Callable[[pulp.LpProblem, Sequence[pulp.LpVariable]], None]
"""Adds constraints to the model, given it and the binary variable of each choice."""


def choose(
    choices: Sequence[CompositionOption],
    capacities: dict[str, int],
    incumbent: dict[int, float],
    problem: Problem,
    left_s: Callable[[], float],
    gap: float,
    extend: Extension | None = None,
) -> MilpAnswer:
    """The selection of choices with the highest value that `problem.milp_solver` finds in `left_s()` seconds.

    `incumbent` maps each trainer to the value of its choice in a known plan. The model counts gains from there,
    so that the solver sees small numbers. The solver may stop at a `gap` relative to the incumbent's total
    value. `extend` adds constraints of its own. Raises `MilpError` where it gives no usable answer.
    """
    gains = [choice.value - incumbent[choice.trainer_index] for choice in choices]
    scale = _COEFFICIENT / max(max(map(abs, gains)), 1e-12)
    model, chosen = _model(choices, gains, capacities, scale)
    if extend is not None:
        extend(model, chosen)
    run = run_highs if problem.milp_solver == "highs" else run_cbc
    base = sum(incumbent.values())
    allowed = gap * abs(base) * scale
    answer = run(model, left_s() - _AFTERWARDS_S, allowed)
    picked = tuple(index for index, x in enumerate(chosen) if answer.values[x.name] > 0.5)
    _check(choices, picked, capacities, set(incumbent))
    value = base + sum(gains[index] for index in picked)
    bound = math.inf if answer.bound is None else base + answer.bound / scale
    if answer.optimal:
        bound = min(bound, value + allowed / scale)
    return MilpAnswer(picked, value, max(bound, value), answer.values)


def _model(
    choices: Sequence[CompositionOption], gains: list[float], capacities: dict[str, int], scale: float
) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    model = pulp.LpProblem("plan", pulp.LpMaximize)
    chosen = [model.add_variable(f"x{index}", cat=pulp.LpBinary) for index in range(len(choices))]
    model += pulp.LpAffineExpression({x: scale * gain for x, gain in zip(chosen, gains, strict=True)})
    of_trainer: dict[int, dict[pulp.LpVariable, int]] = {}
    of_capacity: dict[str, dict[pulp.LpVariable, int]] = {name: {} for name in capacities}
    for x, choice in zip(chosen, choices, strict=True):
        of_trainer.setdefault(choice.trainer_index, {})[x] = 1
        for name, amount in choice.use.items():
            of_capacity[name][x] = amount
    for terms in of_trainer.values():
        model += pulp.LpAffineExpression(terms) == 1
    for name, terms in of_capacity.items():
        if terms:
            model += pulp.LpAffineExpression(terms) <= capacities[name]
    return model, chosen


def _check(
    choices: Sequence[CompositionOption], picked: tuple[int, ...], capacities: dict[str, int], trainers: set[int]
) -> None:
    """Raise `MilpError` unless the selection gives each trainer one choice and keeps to all capacities: solvers
    round."""
    if sorted(choices[index].trainer_index for index in picked) != sorted(trainers):
        raise MilpError("the solver's answer does not give each trainer one choice")
    used = dict.fromkeys(capacities, 0)
    for index in picked:
        for name, amount in choices[index].use.items():
            used[name] += amount
    if any(used[name] > capacities[name] for name in capacities):
        raise MilpError("the solver's answer takes more nodes than there are")
