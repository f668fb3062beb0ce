"""The linear relaxation of the size problem: a bound on every plan, and the price of a node.

Choosing one size for each trainer under a common number of nodes is a multiple-choice knapsack. Its linear
relaxation needs no simplex (Sinha and Zoltners, Operations Research 27(3), 1979; Kellerer, Pferschy and
Pisinger, Knapsack Problems, 2004, ch. 11): only the sizes on the upper concave hull of each f_j matter, and
the steps along these hulls are taken in falling order of value per node until the nodes run out. The first
step that no longer fits gives the price of a node, the dual variable p of the capacity. For any p >= 0

    bound = p * N + sum_j max_n ( f_j(n) - p * n )

is at least the value of every plan, and at this p it is the relaxation's optimum.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from oakum_solver.value import ValueTable


@dataclass(frozen=True)
class Relaxation:
    """The relaxation's optimum."""

    sizes: dict[str, int]
    """Trainer id -> nodes, rounded down to the step before the one that did not fit."""
    price: float
    """p: what one more node would be worth; 0 where nodes are left over."""
    best: dict[str, float]
    """Trainer id -> max over n of f_j(n) - p * n."""
    bound: float
    """No plan is worth more, in the objective's unit."""


@dataclass(frozen=True)
class _Step:
    trainer: str
    start: int
    end: int
    slope: float
    """Value gained per node between `start` and `end`."""


def relax(values: ValueTable, num_nodes: int) -> Relaxation:
    """Solve the linear relaxation for `num_nodes` nodes."""
    steps = [step for trainer, table in values.items() for step in _rising_steps(trainer, table)]
    steps.sort(key=lambda step: -step.slope)
    sizes = dict.fromkeys(values, 0)
    left = num_nodes
    price = 0.0
    for step in steps:
        if step.end - step.start > left:
            price = step.slope
            break
        sizes[step.trainer] = step.end
        left -= step.end - step.start
    best = {
        trainer: max(value - price * nodes for nodes, value in table.items()) for trainer, table in values.items()
    }
    return Relaxation(sizes, price, best, price * num_nodes + sum(best.values()))


def _rising_steps(trainer: str, table: dict[int, float]) -> list[_Step]:
    """The upper concave hull of f_j from 0 nodes on, as steps of falling slope, as long as they gain."""
    hull: list[tuple[int, float]] = []
    for point in table.items():
        while len(hull) >= 2 and _slope(hull[-2], hull[-1]) <= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    steps = (_Step(trainer, start[0], end[0], _slope(start, end)) for start, end in itertools.pairwise(hull))
    return [step for step in steps if step.slope > 0]


def _slope(start: tuple[int, float], end: tuple[int, float]) -> float:
    return (end[1] - start[1]) / (end[0] - start[0])
