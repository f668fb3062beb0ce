"""Pools priced one by one: a bound on every plan, and what each trainer would choose at these prices.

For prices p >= 0 of a node of each pool, and compositions k of trainer j worth value_j(k),

    bound(p) = sum over pools p_g size_g + sum_j max_k ( value_j(k) - sum_g p_g k_g )

is at least the worth of every plan (Lagrangian relaxation of the pools' sizes; Held, Wolfe and Crowder,
Mathematical Programming 6, 1974). Of the compositions with which a trainer grows only those that take new nodes
from a single pool need looking at: the mean seconds of a mixture lie between its pools', so under an objective
that is linear in samples one of the pools alone, were it large enough, would be worth no less at these prices.
The bound is lowered by subgradient steps towards the worth of a plan that is known (Polyak, USSR Computational
Mathematics and Mathematical Physics 9(3), 1969); every step's bound holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oakum_solver.draft import Draft
from oakum_solver.sizes import best_of_keeping, size_values
from oakum_solver.value import Floats, ValueModel

_PATIENCE = 6
"""Steps without a better bound before they are halved."""
_TIGHT = 1e-7
"""Relative distance of the bound to a plan's worth at which nobody needs to step on."""


@dataclass(frozen=True)
class Best:
    """What each trainer would choose at some prices."""

    surplus: Floats
    """value - price of the best composition, shape (J,)."""
    pool: NDArray[np.int64]
    """Pool of which it takes nodes; -1 where it stays or shrinks. Shape (J,)."""
    nodes: NDArray[np.int64]
    """Nodes it takes of that pool; where it stays or shrinks, nodes it keeps. Shape (J,)."""


class Market:
    """All compositions that a bound has to look at, as tables."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.sizes = np.array([pool.size for pool in model.pools.pools], dtype=np.float64)
        held = np.array(model.held, dtype=np.int64)
        self.held = held
        values = size_values(model)
        nodes = np.arange(values.shape[1])
        self.keep = np.where(nodes <= held[:, None], values, -np.inf)
        """Worth of keeping n nodes in the order of `ValueModel.keep_order`, shape (J, M + 1)."""
        self.keep_any = best_of_keeping(model)
        """No less than the worth of keeping any n nodes, shape (J, M + 1)."""
        most = int(min(held.max(initial=0), model.largest))
        self.order = np.full((len(held), most), -1, dtype=np.int64)
        """Pool of the node that is kept first, second, ..., -1 beyond what is held."""
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
        """Worth of keeping everything and taking m nodes of a pool, as if it had them; shape (pools, J, M + 1)."""
        self.grow[:, :, 0] = -np.inf
        self.more = np.arange(self.grow.shape[2], dtype=np.float64)

    def best(self, prices: Floats) -> Best:
        """The best composition of each trainer at these prices, pools taken to be as large as anyone likes."""
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
        return Best(surplus, pool, nodes)

    def net_of_keeping(self, prices: Floats) -> Floats:
        """Worth less price of keeping 0, 1, ... nodes, shape (J, M + 1)."""
        net: Floats = self.keep - self._costs(np.where(self.order >= 0, prices[self.order], 0.0))
        return net

    def _costs(self, priced: Floats) -> Floats:
        """Price of the first 0, 1, ... nodes, shape (J, M + 1), from that of each node held."""
        costs = np.zeros_like(self.keep)
        costs[:, 1 : priced.shape[1] + 1] = np.cumsum(priced, axis=1)
        return costs

    def use(self, best: Best) -> Floats:
        """Nodes of each pool that the trainers would take together, shape (pools,)."""
        use = np.zeros(len(self.sizes))
        grows = best.pool >= 0
        use += self.held_counts[grows].sum(axis=0)
        np.add.at(use, best.pool[grows], best.nodes[grows])
        positions = np.arange(self.order.shape[1])
        kept = self.order[(positions < best.nodes[:, None]) & ~grows[:, None] & (self.order >= 0)]
        use += np.bincount(kept, minlength=len(use))
        return use

    def bound(self, prices: Floats, best: Best) -> float:
        """What no plan is worth more than in which whoever shrinks keeps the nodes that last longest."""
        return float(prices @ self.sizes + best.surplus.sum())

    def safe_bound(self, prices: Floats, best: Best) -> float:
        """What no plan is worth more than: who shrinks keeps the cheapest nodes for the worth of the best."""
        priced = np.sort(np.where(self.order >= 0, prices[self.order], np.inf), axis=1)
        costs = self._costs(np.where(np.isfinite(priced), priced, 0.0))
        surplus = np.maximum(best.surplus, (self.keep_any - costs).max(axis=1))
        return float(prices @ self.sizes + surplus.sum())


def lower_bound(
    market: Market, prices: Floats, known: float, steps: int, go_on: Callable[[], bool]
) -> tuple[Floats, float]:
    """(prices, `Market.bound`): the lowest on the way from these prices; `known` is a plan's worth.

    At most `steps` steps, no more when `go_on` says so.
    """
    lowest, at = np.inf, prices
    pace, waited = 1.0, 0
    for step in range(steps):
        if step and not go_on():
            break
        best = market.best(prices)
        bound = market.bound(prices, best)
        if bound < lowest - 1e-12 * abs(bound):
            lowest, at, waited = bound, prices, 0
        else:
            waited += 1
            if waited >= _PATIENCE:
                pace, waited, prices = pace / 2, 0, at
                continue
        over = market.use(best) - market.sizes
        over[(prices <= 0) & (over < 0)] = 0.0
        length = float(over @ over)
        if length == 0 or bound - known <= _TIGHT * abs(bound):
            break
        prices = np.maximum(0.0, prices + pace * max(bound - known, 0.0) / length * over)
    return at, lowest
