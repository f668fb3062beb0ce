"""The MILP: which size for which trainer, as a multiple-choice knapsack solved by CBC through PuLP.

    maximise    sum_jn f_j(n) x_jn
    subject to  sum_n x_jn = 1  for each trainer j,     sum_jn n x_jn <= N,     x_jn binary

One binary for each (trainer, allowed size) takes any f_j, concave or not, with its stalls and minimum
sizes, and its linear relaxation is almost integral; the published model (BFTrainer, arXiv:2106.12091) needs
about 2JN binaries and big-M constraints for the same decision, because it names nodes. Naming them is
`place`'s work.

Before CBC sees the model it is cut down without loss: given the relaxation's price p and bound B and an
incumbent worth z, a plan that gives j the size n is worth at most

    B - ( max_m (f_j(m) - p m) - (f_j(n) - p n) )

so every size for which that is not above z goes (Kellerer, Pferschy and Pisinger, Knapsack Problems, 2004,
ch. 11). The incumbent needs no warm start file then: it is in the cuts, and what CBC finds is compared with
it anyway.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pulp

from oakum_solver.cbc import run_cbc
from oakum_solver.errors import MilpError
from oakum_solver.greedy import Sizes
from oakum_solver.relaxation import Relaxation
from oakum_solver.value import ValueTable, total_value

TOLERANCE = 1e-9
"""Relative difference of two objective values that counts as none."""
_COEFFICIENT = 1e4
"""The model's largest coefficient. CBC takes absolute differences below 1e-5 for none."""


@dataclass(frozen=True)
class MilpAnswer:
    """The best sizes known after CBC ran."""

    sizes: Sizes
    bound: float
    """No plan is worth more, in the objective's unit."""
    optimal: bool


def proves_optimal(bound: float, value: float) -> bool:
    """True where no plan can be worth more than `value` by more than rounding."""
    return bound - value <= TOLERANCE * max(abs(bound), abs(value))


def milp_sizes(
    values: ValueTable, num_nodes: int, incumbent: Sizes, relaxation: Relaxation, time_limit_s: float
) -> MilpAnswer:
    """The best sizes that CBC finds in `time_limit_s` seconds.

    Raises `MilpError` where CBC gives no usable answer; the incumbent then still stands.
    """
    incumbent_value = total_value(values, incumbent)
    open_sizes = _sizes_that_may_beat(incumbent, incumbent_value, values, relaxation)
    settled = {trainer: incumbent[trainer] for trainer, sizes in open_sizes.items() if len(sizes) == 1}
    gains = {
        (trainer, nodes): values[trainer][nodes] - values[trainer][incumbent[trainer]]
        for trainer, sizes in open_sizes.items()
        for nodes in sizes
        if trainer not in settled
    }
    if not any(gains.values()):
        return MilpAnswer(incumbent, incumbent_value, optimal=True)
    scale = _COEFFICIENT / max(map(abs, gains.values()))
    model, chosen = _model(gains, num_nodes - sum(settled.values()), scale)
    answer = run_cbc(model, time_limit_s)
    sizes = settled | {trainer: n for (trainer, n), x in chosen.items() if answer.values[x.name] > 0.5}
    if sizes.keys() != values.keys() or sum(sizes.values()) > num_nodes:
        raise MilpError("CBC's solution breaks the model's constraints")
    value = total_value(values, sizes)
    bound = relaxation.bound
    if answer.bound is not None:
        bound = min(bound, incumbent_value + answer.bound / scale)
    if value <= incumbent_value:
        sizes, value = incumbent, incumbent_value
    return MilpAnswer(sizes, value if answer.optimal else max(bound, value), answer.optimal)


def _sizes_that_may_beat(
    incumbent: Sizes, incumbent_value: float, values: ValueTable, relaxation: Relaxation
) -> dict[str, list[int]]:
    """For each trainer its incumbent size, and those with which a plan can be worth more."""
    slack = relaxation.bound - incumbent_value
    return {
        trainer: [
            nodes
            for nodes, value in table.items()
            if nodes == incumbent[trainer] or relaxation.best[trainer] - (value - relaxation.price * nodes) < slack
        ]
        for trainer, table in values.items()
    }


def _model(
    gains: dict[tuple[str, int], float], num_nodes: int, scale: float
) -> tuple[pulp.LpProblem, dict[tuple[str, int], pulp.LpVariable]]:
    """The knapsack over the undecided trainers; gains are counted from the incumbent."""
    model = pulp.LpProblem("sizes", pulp.LpMaximize)
    chosen = {size: model.add_variable(f"x{i}", cat=pulp.LpBinary) for i, size in enumerate(gains)}
    model += pulp.LpAffineExpression({x: scale * gains[size] for size, x in chosen.items()})
    for _, sizes in itertools.groupby(gains, key=lambda size: size[0]):
        model += pulp.LpAffineExpression({chosen[size]: 1 for size in sizes}) == 1
    model += pulp.LpAffineExpression({x: nodes for (_, nodes), x in chosen.items()}) <= num_nodes
    return model, chosen
