"""A plan in the making: the composition of each trainer and the nodes of each pool that are still free."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oakum_solver.pools import Composition
from oakum_solver.value import Floats, ValueModel


class Draft:
    """A plan in the making, which methods change step by step. It starts with every trainer at the nodes that it
    holds now."""

    def __init__(self, model: ValueModel) -> None:
        self.model = model
        self.after: list[Composition] = [dict(held) for held in model.pools.held]
        self.free = list(model.pools.free)
        self.shrunk = [False] * len(self.after)
        """For each trainer, whether it gives nodes up; such a trainer gets no nodes in the same plan."""
        self._stalls: Floats | None = None

    def sizes(self) -> list[int]:
        """Number of nodes of each trainer in the draft."""
        return [sum(composition.values()) for composition in self.after]

    def shrink(self, j: int, nodes: int) -> None:
        """Let trainer j keep only `nodes` of the nodes that it holds now; the others become free. It gets no new
        nodes in this draft."""
        kept = self.model.kept(j, nodes)
        for pool, count in self.after[j].items():
            self.free[pool] += count - kept.get(pool, 0)
        self.after[j] = kept
        self.shrunk[j] = True
        self._update_stalls(j)

    def add(self, j: int, pool: int, nodes: int) -> None:
        """Give trainer j `nodes` free nodes of the pool."""
        self.free[pool] -= nodes
        self.after[j][pool] = self.after[j].get(pool, 0) + nodes
        self._update_stalls(j)

    def restore(self, after: list[Composition], free: list[int]) -> None:
        """Set the compositions and free nodes back to `after` and `free`."""
        self.after, self.free = after, free
        self._stalls = None

    def take_back_new_nodes(self, pool: int) -> bool:
        """Take back the pool's nodes that this draft gave to trainers, which makes them free again; returns
        whether there were any. A trainer that would be left with nodes, but a number that it may not have, keeps
        its own."""
        taken = False
        for j, after in enumerate(self.after):
            new_nodes = after.get(pool, 0) - self.model.pools.held[j].get(pool, 0)
            rest = sum(after.values()) - new_nodes
            if new_nodes <= 0 or (rest > 0 and not self.model.trainers[j].allows(rest)):
                continue
            self.after[j] = {p: own for p, count in after.items() if (own := count - new_nodes * (p == pool))}
            self.free[pool] += new_nodes
            self._update_stalls(j)
            taken = True
        return taken

    def room_under_cap(self, j: int) -> int:
        """How many more nodes trainer j may get under its user's cap: negative where the cap is exceeded, the
        number of all nodes where there is no cap."""
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

    def shrink_to_limits(self) -> None:
        """Shrink each trainer that holds nodes which it cannot use, or more nodes than its maximum or its
        user's cap allows, to a number that it may have; one that would fall below its minimum loses all its nodes.
        Under a cap, trainers that come later in the problem shrink before earlier ones."""
        for j in range(len(self.after) - 1, -1, -1):
            trainer, size = self.model.trainers[j], sum(self.after[j].values())
            usable = size - self._useless(j)
            most = min(usable, trainer.max_nodes, size + min(0, self.room_under_cap(j)))
            if most < size:
                self.shrink(j, trainer.fitting(most))

    def _useless(self, j: int) -> int:
        """Number of nodes that trainer j holds and cannot run on together with its others; 0 if the draft has
        changed its nodes, or giving these up does not raise its value."""
        after = self.after[j]
        if after != self.model.pools.held[j]:
            return 0
        usable = self.model.usable(j)
        useless = sum(after.values()) - usable
        if not useless or self.model.value(j, self.model.kept(j, usable)) <= self.model.value(j, after):
            return 0
        return useless

    def drop_unusable(self) -> None:
        """Take the nodes beyond a number that they can train on from trainers, all from those that have fewer
        than their minimum."""
        for j, nodes in enumerate(self.sizes()):
            if (fitting := self.model.trainers[j].fitting(nodes)) < nodes:
                self.shrink(j, fitting)

    def values(self) -> list[float]:
        """Value of each trainer's composition, in the objective's unit."""
        return self.model.values(self.after)

    def gains(self, pool: int) -> Floats:
        """Increase of each trainer's value with 0, 1, 2, ... more nodes of the pool; -inf where not allowed.

        The shape is (J, n + 1), n being the smaller of the pool's free nodes and the largest size.
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
        allowed = model.allowed(nodes) & ~np.array(self.shrunk)[:, None]
        allowed[:, 0] = True
        return np.where(allowed, worth - worth[:, :1], -np.inf)

    def _samples(
        self, pool: int, now: NDArray[np.int64], more: NDArray[np.int64], at: NDArray[np.int64]
    ) -> Floats:
        """Net samples of each trainer with `more` additional nodes of the pool, shape (J, len(more)).

        `now` are the trainers' sizes, `at` the sizes reached, cut to the largest one.
        """
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
        """For each trainer, (number of nodes that join it in the draft, sum of their seconds A in the
        look-ahead after start-up), both of shape (J, 1); A as in `value`."""
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
        """sum over the pools g in use of q(g) S(n - nodes in g) for n = 0 ... M, shape (J, M + 1).

        Times the shrink stall it is D of `value`. The rows are kept up to date by `_update_stalls`.
        """
        if self._stalls is None:
            self._stalls = np.zeros_like(self.model.rates)
            for j in range(len(self.after)):
                self._update_stalls(j)
        return self._stalls

    def _update_stalls(self, j: int) -> None:
        if self._stalls is None:
            return
        row, rates = self._stalls[j], self.model.rates[j]
        row[:] = 0.0
        for pool, count in self.after[j].items():
            row[count:] += self.model.leaving[pool] * rates[: len(rates) - count]

    def _gains_one_by_one(self, pool: int, most: int) -> Floats:
        """What `gains` returns, computed trainer by trainer, for models in which trainers have curves by node
        type."""
        model = self.model
        samples = np.zeros((len(self.after), most + 1))
        allowed = np.zeros(samples.shape, dtype=np.bool_)
        allowed[:, 0] = True
        nodes = np.array(self.sizes(), dtype=np.int64)[:, None] + np.arange(most + 1)
        usable = model.allowed(nodes)
        for j, after in enumerate(self.after):
            rates = self._rates_with(j, after, pool, most)
            samples[j] = self._samples_of(j, after, pool, rates)
            if not self.shrunk[j]:
                allowed[j, 1:] = (rates[1:] > 0) & usable[j, 1:]
        worth = model.worth(samples, nodes)
        gains = np.where(allowed, worth - worth[:, :1], -np.inf)
        gains[:, 0] = 0.0
        return gains

    def _rates_with(self, j: int, composition: Composition, pool: int, most: int) -> Floats:
        """Samples/s of trainer j with `composition` and 0 to `most` additional nodes of the pool, shape (most +
        1,)."""
        if not all(self.model.may_have(j, used) for used in (pool, *composition)):
            row = np.zeros(most + 1)
            row[0] = self.model.rate(j, composition)
            return row
        if self.model.trainers[j].curves_by_type is not None:
            return self.model.rate_row(j, composition, pool, most)
        nodes = sum(composition.values()) + np.arange(most + 1)
        rates: Floats = self.model.rates[j, np.minimum(nodes, self.model.largest)]
        return rates

    def _samples_of(self, j: int, after: Composition, pool: int, rates: Floats) -> Floats:
        """Net samples of trainer j with the composition `after` and 0, 1, ... additional nodes of the pool;
        shape of `rates`, the trainer's samples/s with 0, 1, ... additional nodes."""
        model, terms, trainer = self.model, self.model.problem.terms, self.model.trainers[j]
        samples = np.full(len(rates), model.samples(j, after))
        if self.shrunk[j] or len(rates) == 1:
            return samples
        joined_s = model.joined_s[model.startup_row[j]]
        held = model.pools.held[j]
        new_nodes = {p: count - held.get(p, 0) for p, count in after.items() if count > held.get(p, 0)}
        more = np.arange(1, len(rates))
        seconds = sum(count * joined_s[p] for p, count in new_nodes.items()) + more * joined_s[pool]
        now, then = float(model.now[j, 0]), rates[1:]
        gained = (then - now) * seconds / (sum(new_nodes.values()) + more)
        samples[1:] = float(model.base[j, 0]) + gained - trainer.grow_stall_s * (then if terms.new_rate else now)
        if terms.departures:
            samples[1:] -= trainer.shrink_stall_s * self._departures_with(j, after, pool, len(more))
        return samples

    def _departures_with(self, j: int, after: Composition, pool: int, most: int) -> Floats:
        """sum over the pools g in use of q(g) S(nodes outside g), with 1 to `most` additional nodes of the
        pool."""
        rest = {p: count for p, count in after.items() if p != pool}
        stalls = np.full(most, self.model.leaving[pool] * self.model.rate(j, rest))
        for other in rest:
            without = {p: count for p, count in after.items() if p != other}
            stalls += self.model.leaving[other] * self._rates_with(j, without, pool, most)[1:]
        return stalls
