"""One size for each trainer under a common number of nodes: the multiple-choice knapsack.

`values` has shape (J, M + 1): the worth of trainer j at n nodes, -inf where n is not allowed; at least one
size of each trainer is allowed.

Its linear relaxation needs no simplex (Sinha and Zoltners, Operations Research 27(3), 1979; Kellerer,
Pferschy and Pisinger, Knapsack Problems, 2004, ch. 11). For a price p >= 0 of a node

    bound(p) = p N + sum_j max_n ( values[j, n] - p n )

is at least the worth of every choice; it is convex and piecewise linear in p, and its minimum is the
relaxation's optimum. We find it by intersecting the lines on both sides of the minimum, a handful of passes
over the table. At that price a choice that gives j the size n is worth at most

    bound - ( max_m (values[j, m] - p m) - (values[j, n] - p n) )

so every size for which that is no better than a choice already known goes, which leaves next to nothing for
the exact dynamic program over what is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sizes = NDArray[np.int64]
"""Nodes of each trainer, shape (J,)."""

TOLERANCE = 1e-9
"""Relative difference of two values that counts as none."""
_MOST_PASSES = 200
_MOST_WORK = 20_000_000
"""Additions that the dynamic program may take: about 0.1 s."""


@dataclass(frozen=True)
class Relaxation:
    """The relaxation's optimum."""

    sizes: Sizes
    """The best sizes at the price, the smaller ones where sizes are worth the same: they fit."""
    price: float
    """p: what one more node would be worth; 0 where nodes are left over."""
    best: Floats
    """max over n of values[j, n] - p n, shape (J,)."""
    bound: float
    """No choice is worth more."""


def total(values: Floats, sizes: Sizes) -> float:
    """Worth of these sizes."""
    return float(values[np.arange(len(values)), sizes].sum())


def proves_optimal(bound: float, value: float) -> bool:
    """True where nothing can be worth more than `value` by more than rounding."""
    return bound < np.inf and bound - value <= TOLERANCE * max(abs(bound), abs(value))


def relax(values: Floats, num_nodes: float, weights: Floats | None = None) -> Relaxation | None:
    """The linear relaxation for `num_nodes` nodes; None where not even the smallest choices fit.

    `weights`, of the shape of `values`: how much of the capacity each choice takes, where that is not its number
    of nodes.
    """
    if weights is None:
        weights = np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)
    rows = np.arange(len(values))

    def line(price: float) -> tuple[Sizes, float, float]:
        """(choices, worth, weight) of the line that supports the bound at this price."""
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
    """A price at which everybody takes the choice of the least weight."""
    allowed = np.isfinite(values)
    worths, steps = values[allowed], np.diff(np.unique(weights[allowed]))
    return (float(worths.max() - worths.min()) + 1.0) / max(float(steps.min(initial=1.0)), 1e-9)


def _relaxation(values: Floats, weights: Floats, num_nodes: float, price: float, sizes: Sizes) -> Relaxation:
    best = (values - price * weights).max(axis=1)
    return Relaxation(sizes, price, best, price * num_nodes + float(best.sum()))


def fill(values: Floats, sizes: Sizes, num_nodes: int) -> Sizes:
    """Raise sizes by the jumps of the best worth per node until no node is left or nothing gains.

    A jump goes as far as a minimum size or a bend of a curve that is not concave demands.
    """
    sizes = sizes.copy()
    left = num_nodes - int(sizes.sum())
    ends = np.zeros(len(values), dtype=np.int64)
    slopes = np.zeros(len(values))
    stale = list(range(len(values)))
    while left > 0:
        for trainer in stale:
            slopes[trainer], ends[trainer] = _best_jump(values[trainer], int(sizes[trainer]), left)
        trainer = int(slopes.argmax()) if len(slopes) else 0
        if not len(slopes) or slopes[trainer] <= 0:
            break
        left -= int(ends[trainer] - sizes[trainer])
        sizes[trainer] = ends[trainer]
        stale = [trainer, *np.flatnonzero(ends - sizes > left).tolist()]
    return sizes


def _best_jump(row: Floats, size: int, left: int) -> tuple[float, int]:
    """(worth per node, end) of the best jump from `size` by at most `left` nodes."""
    gains = row[size + 1 : size + 1 + left] - row[size]
    if not len(gains):
        return 0.0, size
    slopes = gains / np.arange(1, len(gains) + 1)
    best = int(slopes.argmax())
    return float(slopes[best]), size + 1 + best


def exact(values: Floats, num_nodes: int, incumbent: Sizes, relaxation: Relaxation) -> Sizes | None:
    """The best sizes, by dynamic programming over those that may beat the incumbent.

    None where that would take too long.
    """
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
    """Best use of `room` nodes above everybody's smallest open size."""
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
