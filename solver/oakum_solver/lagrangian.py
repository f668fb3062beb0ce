"""The Lagrangian dual of the allocation problem: a price for each pool gives an upper bound on every plan.

With a price p_g >= 0 for a node of each pool g, and value_j(k) the value of trainer j with the composition k (k_g
nodes of pool g),

    bound(p) = sum over pools p_g size_g + sum_j max_k ( value_j(k) - sum_g p_g k_g )

is at least the value of every plan: the Lagrangian relaxation of the pools' sizes (Held, Wolfe and Crowder,
Mathematical Programming 6, 1974). The maximum over k tells what each trainer would choose at these prices.

Of the compositions with which a trainer grows, only those that take new nodes from a single pool are examined. The
mean productive seconds of a mixture lie between those of its pools, so under an objective that is linear in
samples one of the pools alone, if it were large enough, would be worth no less at these prices.

Subgradient steps lower the bound towards the value of a known plan (Polyak, USSR Computational Mathematics and
Mathematical Physics 9(3), 1969). The bound of every step is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oakum_solver.draft import Draft
from oakum_solver.size_values import best_of_keeping, size_values
from oakum_solver.value import Floats, ValueModel

_PATIENCE = 6
"""Steps without a better bound after which the step length is halved."""
_TIGHT = 1e-7
"""Relative distance between the bound and the known plan's value at which the steps end."""


@dataclass(frozen=True)
class BestResponses:
    """The composition that each trainer would choose at given prices."""

    surplus: Floats
    """Value less price of each trainer's best composition, shape (J,)."""
    pool: NDArray[np.int64]
    """Pool of which the trainer takes new nodes; -1 where it takes none. Shape (J,)."""
    nodes: NDArray[np.int64]
    """Number of new nodes of that pool; where `pool` is -1, number of nodes that it keeps. Shape (J,)."""


class LagrangianDual:
    """The Lagrangian dual of a problem of J trainers at sizes of 0 to M nodes. It keeps the values of all
    compositions to examine in tables."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.sizes = np.array([pool.size for pool in model.pools.pools], dtype=np.float64)
        held = np.array(model.held, dtype=np.int64)
        self.held = held
        values = size_values(model)
        nodes = np.arange(values.shape[1])
        self.keep = np.where(nodes <= held[:, None], values, -np.inf)
        """Value of keeping the first n held nodes in the order of `ValueModel.keep_order`, shape (J, M + 1)."""
        self.keep_any = best_of_keeping(model)
        """Upper bound on the value of keeping any n of the held nodes, shape (J, M + 1)."""
        most = int(min(held.max(initial=0), model.largest))
        self.order = np.full((len(held), most), -1, dtype=np.int64)
        """Pools of each trainer's held nodes in the order in which they are kept; -1 beyond them. Shape (J,
        held)."""
        for j in range(len(held)):
            mine = [pool for pool, count in model.keep_order(j) for _ in range(count)][:most]
            self.order[j, : len(mine)] = mine
        self.held_counts = np.zeros((len(held), len(self.sizes)))
        for j, composition in enumerate(model.pools.held):
            for pool, count in composition.items():
                self.held_counts[j, pool] = count
        draft = Draft(model)
        draft.free = [model.problem.num_nodes] * len(self.sizes)
        now = np.array(model.values(model.pools.held)).reshape(-1, 1)
        self.grow = np.stack([now + draft.gains(pool) for pool in range(len(self.sizes))])
        """Value of keeping all held nodes and taking m more of a pool, however large the pool is.

        Shape (pools, J, M + 1).
        """
        self.grow[:, :, 0] = -np.inf
        self.more = np.arange(self.grow.shape[2], dtype=np.float64)

    def best(self, prices: Floats) -> BestResponses:
        """The best composition of each trainer at `prices` (pools,); the sizes of the pools do not limit it."""
        rows = np.arange(len(self.held))
        kept = self.net_of_keeping(prices)
        nodes = kept.argmax(axis=1)
        surplus, pool = kept[rows, nodes], np.full(len(rows), -1)
        held_price = self.held_counts @ prices
        for number, table in enumerate(self.grow):
            net = table - prices[number] * self.more
            taken = net.argmax(axis=1)
            gained = net[rows, taken] - held_price
            better = gained > surplus
            surplus, pool, nodes = (
                np.where(better, gained, surplus),
                np.where(better, number, pool),
                np.where(better, taken, nodes),
            )
        return BestResponses(surplus, pool, nodes)

    def net_of_keeping(self, prices: Floats) -> Floats:
        """Value less price of keeping 0, 1, ... of the held nodes, shape (J, M + 1)."""
        net: Floats = self.keep - self._costs(np.where(self.order >= 0, prices[self.order], 0.0))
        return net

    def _costs(self, priced: Floats) -> Floats:
        """Total price of the first 0, 1, ... held nodes, shape (J, M + 1), from the price of each held node."""
        costs = np.zeros_like(self.keep)
        costs[:, 1 : priced.shape[1] + 1] = np.cumsum(priced, axis=1)
        return costs

    def use(self, best: BestResponses) -> Floats:
        """Number of nodes of each pool that all trainers' choices take together, shape (pools,)."""
        use = np.zeros(len(self.sizes))
        grows = best.pool >= 0
        use += self.held_counts[grows].sum(axis=0)
        np.add.at(use, best.pool[grows], best.nodes[grows])
        positions = np.arange(self.order.shape[1])
        kept = self.order[(positions < best.nodes[:, None]) & ~grows[:, None] & (self.order >= 0)]
        use += np.bincount(kept, minlength=len(use))
        return use

    def bound(self, prices: Floats, best: BestResponses) -> float:
        """Upper bound, at these prices, on the value of plans in which shrinking trainers keep their nodes in the
        order of `ValueModel.keep_order`. `best` is the result of `best(prices)`."""
        return float(prices @ self.sizes + best.surplus.sum())

    def safe_bound(self, prices: Floats, best: BestResponses) -> float:
        """Upper bound, at these prices, on the value of every plan. `best` is the result of `best(prices)`.

        A shrinking trainer is taken to keep its cheapest nodes and to value them like its best ones.
        """
        priced = np.sort(np.where(self.order >= 0, prices[self.order], np.inf), axis=1)
        costs = self._costs(np.where(np.isfinite(priced), priced, 0.0))
        surplus = np.maximum(best.surplus, (self.keep_any - costs).max(axis=1))
        return float(prices @ self.sizes + surplus.sum())


def tighten_bound(
    dual: LagrangianDual, prices: Floats, known_value: float, steps: int, go_on: Callable[[], bool]
) -> tuple[Floats, float]:
    """Lower the bound by at most `steps` subgradient steps from `prices`; stop early when `go_on()` is false.

    Returns the prices with the smallest `LagrangianDual.bound`, and that bound. `known_value` is the value of a
    known plan, which sets the step length.
    """
    lowest, at = np.inf, prices
    pace, waited = 1.0, 0
    for step in range(steps):
        if step and not go_on():
            break
        best = dual.best(prices)
        bound = dual.bound(prices, best)
        if bound < lowest - 1e-12 * abs(bound):
            lowest, at, waited = bound, prices, 0
        else:
            waited += 1
            if waited >= _PATIENCE:
                pace, waited, prices = pace / 2, 0, at
                continue
        over = dual.use(best) - dual.sizes
        over[(prices <= 0) & (over < 0)] = 0.0
        length = float(over @ over)
        if length == 0 or bound - known_value <= _TIGHT * abs(bound):
            break
        prices = np.maximum(0.0, prices + pace * max(bound - known_value, 0.0) / length * over)
    return at, lowest
