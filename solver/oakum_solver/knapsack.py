"""The multiple-choice knapsack: choose one size for each trainer so that all fit a number of nodes.

`values` has the shape (J, M + 1) and holds the worth of trainer j at n nodes, -inf where the size n is not
allowed. Each trainer has at least one allowed size.

Its linear relaxation needs no simplex (Sinha and Zoltners, Operations Research 27(3), 1979; Kellerer,
Pferschy and Pisinger, Knapsack Problems, 2004, ch. 11). For a price p >= 0 of a node

    bound(p) = p N + sum_j max_n ( values[j, n] - p n )

is an upper bound on the worth of all sizes that fit N nodes. It is convex and piecewise linear in p, and its
minimum is the optimum of the relaxation. `relax` finds it by intersecting the lines on both sides of the minimum,
which takes a handful of passes over the table. At the optimal price, a solution in which trainer j has n nodes is
worth at most

    bound - ( max_m (values[j, m] - p m) - (values[j, n] - p n) )

so every size for which this is no more than the worth of a known solution is dropped. Few sizes remain for the
exact dynamic program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]
"""Nodes of each trainer, shape (J,)."""

TOLERANCE = 1e-9
"""Relative difference below which two values count as equal."""
_MOST_PASSES = 200
_MOST_WORK = 20_000_000
"""Most additions that the dynamic program may need; about 0.1 s."""


@dataclass(frozen=True)
class Relaxation:
    """The optimum of the knapsack's linear relaxation."""

    sizes: Sizes
    """Each trainer's best size at the price; of equally good sizes the smaller ones, so that all fit. Shape
    (J,)."""
    price: float
    """p: the worth of one additional node; 0 where nodes are left over."""
    best: Floats
    """max over n of values[j, n] - p n, for each trainer j; shape (J,)."""
    bound: float
    """No sizes that fit are worth more."""


def total(values: Floats, sizes: Sizes) -> float:
    """Sum of the trainers' worths: trainer j contributes `values[j, sizes[j]]`."""
    return float(values[np.arange(len(values)), sizes].sum())


def proves_optimal(bound: float, value: float) -> bool:
    """Whether `value` reaches the upper bound, rounding aside."""
    return bound < np.inf and bound - value <= TOLERANCE * max(abs(bound), abs(value))


def relax(values: Floats, num_nodes: float, weights: Floats | None = None) -> Relaxation | None:
    """Solve the linear relaxation for the capacity `num_nodes`; None where even the smallest sizes do not fit.
    Returns the optimal price with the choices there.

    `weights`, of the shape of `values`, is the capacity that each choice takes; by default its number of nodes.
    """
    if weights is None:
        weights = np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)
    rows = np.arange(len(values))

    def line(price: float) -> tuple[Sizes, float, float]:
        """(best choices, the sum of their values, the sum of their weights) at a price."""
        sizes = np.argmax(values - price * weights, axis=1)
        return sizes, float(values[rows, sizes].sum()), float(weights[rows, sizes].sum())

    low_price, (sizes, low_worth, low_nodes) = 0.0, line(0.0)
    if low_nodes <= num_nodes:
        return _relaxation(values, weights, num_nodes, 0.0, sizes)
    high_price = _unaffordable(values, weights)
    sizes, high_worth, high_nodes = line(high_price)
    if high_nodes > num_nodes:
        return None
    for _ in range(_MOST_PASSES):
        price = (low_worth - high_worth) / (low_nodes - high_nodes)
        if not low_price < price < high_price:
            break
        middle, worth, used = line(price)
        if worth - price * used <= high_worth - price * high_nodes + TOLERANCE * abs(high_worth):
            high_price = price
            break
        if used > num_nodes:
            low_price, low_worth, low_nodes = price, worth, used
        else:
            high_price, sizes, high_worth, high_nodes = price, middle, worth, used
    else:
        price = high_price
    return _relaxation(values, weights, num_nodes, max(price, 0.0), sizes)


def _unaffordable(values: Floats, weights: Floats) -> float:
    """A price so high that every trainer takes its choice of least weight."""
    allowed = np.isfinite(values)
    worths, steps = values[allowed], np.diff(np.unique(weights[allowed]))
    return (float(worths.max() - worths.min()) + 1.0) / max(float(steps.min(initial=1.0)), 1e-9)


def _relaxation(values: Floats, weights: Floats, num_nodes: float, price: float, sizes: Sizes) -> Relaxation:
    best = (values - price * weights).max(axis=1)
    return Relaxation(sizes, price, best, price * num_nodes + float(best.sum()))


def fill(values: Floats, sizes: Sizes, num_nodes: int) -> Sizes:
    """A copy of `sizes`, raised greedily until all of `num_nodes` are used or no trainer gains.

    Each step raises one trainer by as many nodes as give the largest gain per node. That may be several at once,
    where a trainer has a minimum size or its curve is not concave.
    """
    sizes = sizes.copy()
    remaining = num_nodes - int(sizes.sum())
    ends = np.zeros(len(values), dtype=np.int64)
    slopes = np.zeros(len(values))
    stale = list(range(len(values)))
    while remaining > 0:
        for j in stale:
            slopes[j], ends[j] = _best_jump(values[j], int(sizes[j]), remaining)
        j = int(slopes.argmax()) if len(slopes) else 0
        if not len(slopes) or slopes[j] <= 0:
            break
        remaining -= int(ends[j] - sizes[j])
        sizes[j] = ends[j]
        stale = [j, *np.flatnonzero(ends - sizes > remaining).tolist()]
    return sizes


def _best_jump(row: Floats, size: int, most: int) -> tuple[float, int]:
    """(gain per node, new size) of the step from `size`, by at most `most` nodes, that gains most per node."""
    gains = row[size + 1 : size + 1 + most] - row[size]
    if not len(gains):
        return 0.0, size
    slopes = gains / np.arange(1, len(gains) + 1)
    best = int(slopes.argmax())
    return float(slopes[best]), size + 1 + best


def exact(values: Floats, num_nodes: int, incumbent: Sizes, relaxation: Relaxation) -> Sizes | None:
    """Optimal sizes, by dynamic programming over the sizes that could beat the known solution `incumbent`. None
    where that would take more than `_MOST_WORK` additions."""
    slack = relaxation.bound - total(values, incumbent)
    reduced = relaxation.best[:, None] - (values - relaxation.price * np.arange(values.shape[1]))
    rows = np.arange(len(values))
    open_sizes = np.isfinite(values) & (reduced < slack)
    open_sizes[rows, incumbent] = True
    settled = open_sizes.sum(axis=1) == 1
    smallest = np.argmax(open_sizes, axis=1)
    room = num_nodes - int(smallest.sum())
    if open_sizes[~settled].sum() * (room + 1.0) > _MOST_WORK:
        return None
    return _dynamic_program(values, open_sizes, smallest, settled, room)


def _dynamic_program(
    values: Floats, open_sizes: NDArray[np.bool_], smallest: Sizes, settled: NDArray[np.bool_], room: int
) -> Sizes:
    """Sizes that distribute `room` nodes best, on top of each trainer's smallest open size.

    `open_sizes` (J, M + 1) marks the sizes to choose from; `settled` (J,) the trainers with a single open size.
    """
    best = np.zeros(room + 1)
    undecided = np.flatnonzero(~settled)
    choices = np.zeros((len(undecided), room + 1), dtype=np.int32)
    for row, trainer in enumerate(undecided.tolist()):
        before, best = best, np.full(room + 1, -np.inf)
        for size in np.flatnonzero(open_sizes[trainer]).tolist():
            extra = size - int(smallest[trainer])
            if extra > room:
                continue
            candidate = before[: room + 1 - extra] + values[trainer, size]
            better = candidate > best[extra:]
            best[extra:][better] = candidate[better]
            choices[row, extra:][better] = extra
    sizes = smallest.copy()
    for row in range(len(undecided) - 1, -1, -1):
        extra = int(choices[row, room])
        sizes[undecided[row]] += extra
        room -= extra
    return sizes
