"""A plan in the making: what each trainer would have of which pool, and what is still free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oakum_solver.pools import Composition
from oakum_solver.value import Floats, ValueModel


class Draft:
    """Compositions of all trainers and the free nodes of all pools; starts from what is held now."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.after: list[Composition] = [dict(held) for held in model.pools.held]
        self.free = list(model.pools.free)
        self.shrunk = [False] * len(self.after)
        """Trainers that give nodes up: they may not get any in the same plan."""
        self._stalls: Floats | None = None

    def sizes(self) -> list[int]:
        """Nodes of each trainer."""
        return [sum(composition.values()) for composition in self.after]

    def shrink(self, j: int, nodes: int) -> None:
        """Trainer j gives up all but `nodes` of what it holds now."""
        kept = self.model.kept(j, nodes)
        for pool, count in self.after[j].items():
            self.free[pool] += count - kept.get(pool, 0)
        self.after[j] = kept
        self.shrunk[j] = True
        self._renew(j)

    def add(self, j: int, pool: int, nodes: int) -> None:
        """Trainer j gets `nodes` free nodes of the pool."""
        self.free[pool] -= nodes
        self.after[j][pool] = self.after[j].get(pool, 0) + nodes
        self._renew(j)

    def restore(self, after: list[Composition], free: list[int]) -> None:
        """Go back to these compositions and free nodes."""
        self.after, self.free = after, free
        self._stalls = None

    def take_back(self, pool: int) -> bool:
        """Take back what this draft gave of the pool, except from who would be left with too little to run on.

        Whether anything was.
        """
        taken = False
        for j, after in enumerate(self.after):
            given = after.get(pool, 0) - self.model.pools.held[j].get(pool, 0)
            rest = sum(after.values()) - given
            if given <= 0 or 0 < rest < self.model.trainers[j].min_nodes:
                continue
            self.after[j] = {p: left for p, count in after.items() if (left := count - given * (p == pool))}
            self.free[pool] += given
            self._renew(j)
            taken = True
        return taken

    def room_of_user(self, j: int) -> int:
        """How many nodes more the cap of trainer j's user allows."""
        user = self.model.trainers[j].user
        cap = self.model.problem.user_caps.get(user) if user is not None else None
        if cap is None:
            return self.model.problem.num_nodes
        used = sum(
            sum(after.values())
            for other, after in zip(self.model.trainers, self.after, strict=True)
            if other.user == user
        )
        return cap - used

    def obey_limits(self) -> None:
        """Give up what is held beyond a trainer's maximum or its user's cap, the last trainers first."""
        for j in range(len(self.after) - 1, -1, -1):
            trainer, size = self.model.trainers[j], sum(self.after[j].values())
            usable = size - self._useless(j)
            most = min(usable, trainer.max_nodes, size + min(0, self.room_of_user(j)))
            if most < size:
                self.shrink(j, most if most >= trainer.min_nodes else 0)

    def _useless(self, j: int) -> int:
        """How many of the nodes that trainer j holds it cannot run on and gains from giving up."""
        after = self.after[j]
        if after != self.model.pools.held[j]:
            return 0
        usable = self.model.usable(j)
        useless = sum(after.values()) - usable
        if not useless or self.model.value(j, self.model.kept(j, usable)) <= self.model.value(j, after):
            return 0
        return useless

    def drop_below_minimum(self) -> None:
        """Give up what is too little to run on."""
        for j, after in enumerate(self.after):
            if after and sum(after.values()) < self.model.trainers[j].min_nodes:
                self.shrink(j, 0)

    def values(self) -> list[float]:
        """Worth of each trainer's composition, in the objective's unit."""
        return self.model.values(self.after)

    def gains(self, pool: int) -> Floats:
        """What each trainer gains from 0, 1, 2, ... more nodes of the pool, shape (J, free + 1 at most).

        -inf where that many are not allowed.
        """
        model = self.model
        most = min(self.free[pool], model.largest)
        if model.typed:
            return self._gains_one_by_one(pool, most)
        now = np.array(self.sizes(), dtype=np.int64)[:, None]
        more = np.arange(most + 1)
        nodes = now + more
        at = np.minimum(nodes, model.largest)
        samples = self._samples(pool, now, more, at)
        worth = model.worth(samples, nodes)
        allowed = (nodes >= model.low) & (nodes <= model.high) & ~np.array(self.shrunk)[:, None]
        allowed[:, 0] = True
        return np.where(allowed, worth - worth[:, :1], -np.inf)

    def _samples(
        self, pool: int, now: NDArray[np.int64], more: NDArray[np.int64], at: NDArray[np.int64]
    ) -> Floats:
        """Net samples with `more` nodes of the pool; the first column is the present draft's."""
        model, terms = self.model, self.model.problem.terms
        rows = np.arange(len(at))[:, None]
        rates = model.rates[rows, at]
        joined, joined_s = self._joined()
        joins = joined + more
        mean_s = (joined_s + more * model.joined_s[model.startup_row, pool][:, None]) / np.maximum(joins, 1)
        grow = model.grow_s * (rates if terms.new_rate else model.now)
        samples = model.base + np.where(joins > 0, (rates - model.now) * mean_s - grow, 0.0)
        if terms.departures:
            mine = np.array([after.get(pool, 0) for after in self.after])[:, None]
            others = self._stall_rows()[rows, at] - np.where(
                mine > 0, model.leaving[pool] * model.rates[rows, np.maximum(at - mine, 0)], 0.0
            )
            rest = np.where(more + mine > 0, model.rates[rows, np.maximum(now - mine, 0)], 0.0)
            samples = samples - model.shrink_s * (others + model.leaving[pool] * rest)
        return samples

    def _joined(self) -> tuple[Floats, Floats]:
        """(nodes that join in this draft, the sum of their A in seconds), shape (J, 1) each."""
        joined = np.zeros((len(self.after), 1))
        joined_s = np.zeros((len(self.after), 1))
        for j, (after, held) in enumerate(zip(self.after, self.model.pools.held, strict=True)):
            if self.shrunk[j] or after == held:
                continue
            row = self.model.joined_s[self.model.startup_row[j]]
            for pool, count in after.items():
                if new := count - held.get(pool, 0):
                    joined[j] += new
                    joined_s[j] += new * row[pool]
        return joined, joined_s

    def _stall_rows(self) -> Floats:
        """sum over pools in use of q S(n - nodes in the pool), for n = 0 ... M; shape (J, M + 1)."""
        if self._stalls is None:
            self._stalls = np.zeros_like(self.model.rates)
            for j in range(len(self.after)):
                self._renew(j)
        return self._stalls

    def _renew(self, j: int) -> None:
        if self._stalls is None:
            return
        row, rates = self._stalls[j], self.model.rates[j]
        row[:] = 0.0
        for pool, count in self.after[j].items():
            row[count:] += self.model.leaving[pool] * rates[: len(rates) - count]

    def _gains_one_by_one(self, pool: int, most: int) -> Floats:
        """`gains` where trainers have curves by type."""
        model = self.model
        samples = np.zeros((len(self.after), most + 1))
        allowed = np.zeros(samples.shape, dtype=np.bool_)
        allowed[:, 0] = True
        nodes = np.array(self.sizes(), dtype=np.int64)[:, None] + np.arange(most + 1)
        for j, after in enumerate(self.after):
            rates = self._rates_with(j, after, pool, most)
            samples[j] = self._samples_of(j, after, pool, rates)
            if not self.shrunk[j]:
                allowed[j, 1:] = (rates[1:] > 0) & (nodes[j, 1:] <= model.trainers[j].max_nodes)
        worth = model.worth(samples, nodes)
        gains = np.where(allowed, worth - worth[:, :1], -np.inf)
        gains[:, 0] = 0.0
        return gains

    def _rates_with(self, j: int, composition: Composition, pool: int, most: int) -> Floats:
        """Samples/s with 0 to `most` nodes of the pool more."""
        if self.model.trainers[j].curves_by_type is not None:
            return self.model.rate_row(j, composition, pool, most)
        nodes = sum(composition.values()) + np.arange(most + 1)
        rates: Floats = self.model.rates[j, np.minimum(nodes, self.model.largest)]
        return rates

    def _samples_of(self, j: int, after: Composition, pool: int, rates: Floats) -> Floats:
        """Net samples of trainer j with 0, 1, ... nodes of the pool more."""
        model, terms, trainer = self.model, self.model.problem.terms, self.model.trainers[j]
        samples = np.full(len(rates), model.samples(j, after))
        if self.shrunk[j] or len(rates) == 1:
            return samples
        joined_s = model.joined_s[model.startup_row[j]]
        held = model.pools.held[j]
        given = {p: count - held.get(p, 0) for p, count in after.items() if count > held.get(p, 0)}
        more = np.arange(1, len(rates))
        seconds = sum(count * joined_s[p] for p, count in given.items()) + more * joined_s[pool]
        now, then = float(model.now[j, 0]), rates[1:]
        gained = (then - now) * seconds / (sum(given.values()) + more)
        samples[1:] = float(model.base[j, 0]) + gained - trainer.grow_stall_s * (then if terms.new_rate else now)
        if terms.departures:
            samples[1:] -= trainer.shrink_stall_s * self._departures_with(j, after, pool, len(more))
        return samples

    def _departures_with(self, j: int, after: Composition, pool: int, most: int) -> Floats:
        """sum over the pools in use of q S(the rest), with 1 to `most` nodes of the pool more."""
        rest = {p: count for p, count in after.items() if p != pool}
        stalls = np.full(most, self.model.leaving[pool] * self.model.rate(j, rest))
        for other in rest:
            without = {p: count for p, count in after.items() if p != other}
            stalls += self.model.leaving[other] * self._rates_with(j, without, pool, most)[1:]
        return stalls
