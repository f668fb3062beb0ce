"""The MILP: one choice for each trainer within the nodes of every pool, solved through PuLP by CBC or HiGHS.

    maximise    sum_c value_c x_c
    subject to  sum_{c of trainer j} x_c = 1  for each trainer j,
                sum_c use_cp x_c <= size_p  for each pool p,
                sum_{c of u's trainers} nodes_c x_c <= cap_u  for each user u with a cap,      x_c binary

A choice c is a composition: an integer count of nodes of each pool for one trainer, with its exact value,
stalls, start-up, minimum sizes, mixed types and departures included. So curves need neither SOS2 nor big-M
constraints, concave or not, and the linear relaxation is almost integral; the published model (BFTrainer,
arXiv:2106.12091) needs about 2JN binaries and big-M constraints because it names nodes. Naming them is
`place`'s work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pulp

from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from oakum_solver.highs import run_highs
from oakum_solver.problem import Problem

_AFTERWARDS_S = 0.02
_COEFFICIENT = 1e4
"""The model's largest coefficient. CBC takes absolute differences below 1e-5 for none."""


@dataclass(frozen=True)
class Choice:
    """One thing that a trainer may be given."""

    trainer: int
    use: dict[str, int]
    """Name of a capacity -> how much of it the choice takes."""
    value: float


@dataclass(frozen=True)
class MilpAnswer:
    """The best choices found."""

    chosen: tuple[int, ...]
    """Indexes into the choices, one for each trainer."""
    value: float
    bound: float
    """No selection of these choices is worth more."""


def choose(
    choices: Sequence[Choice],
    capacities: dict[str, int],
    incumbent: dict[int, float],
    problem: Problem,
    left_s: Callable[[], float],
    gap: float,
) -> MilpAnswer:
    """The best selection that the problem's solver finds in the seconds that are left.

    It is asked for no better than a `gap`, relative to the incumbent's worth.

    `incumbent`: trainer -> value of its choice in a known plan; gains are counted from it, so that the solver
    sees small numbers. Raises `MilpError` where the solver gives no usable answer.
    """
    gains = [choice.value - incumbent[choice.trainer] for choice in choices]
    scale = _COEFFICIENT / max(max(map(abs, gains)), 1e-12)
    model, chosen = _model(choices, gains, capacities, scale)
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
    return MilpAnswer(picked, value, max(bound, value))


def _model(
    choices: Sequence[Choice], gains: list[float], capacities: dict[str, int], scale: float
) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    model = pulp.LpProblem("plan", pulp.LpMaximize)
    chosen = [model.add_variable(f"x{index}", cat=pulp.LpBinary) for index in range(len(choices))]
    model += pulp.LpAffineExpression({x: scale * gain for x, gain in zip(chosen, gains, strict=True)})
    of_trainer: dict[int, dict[pulp.LpVariable, int]] = {}
    of_capacity: dict[str, dict[pulp.LpVariable, int]] = {name: {} for name in capacities}
    for x, choice in zip(chosen, choices, strict=True):
        of_trainer.setdefault(choice.trainer, {})[x] = 1
        for name, amount in choice.use.items():
            of_capacity[name][x] = amount
    for terms in of_trainer.values():
        model += pulp.LpAffineExpression(terms) == 1
    for name, terms in of_capacity.items():
        if terms:
            model += pulp.LpAffineExpression(terms) <= capacities[name]
    return model, chosen


def _check(
    choices: Sequence[Choice], picked: tuple[int, ...], capacities: dict[str, int], trainers: set[int]
) -> None:
    """Solvers round: what they say is checked before anything is built on it."""
    if sorted(choices[index].trainer for index in picked) != sorted(trainers):
        raise MilpError("the solver's answer does not give each trainer one choice")
    used = dict.fromkeys(capacities, 0)
    for index in picked:
        for name, amount in choices[index].use.items():
            used[name] += amount
    if any(used[name] > capacities[name] for name in capacities):
        raise MilpError("the solver's answer takes more nodes than there are")
