"""Values a plan: each trainer's expected samples over the look-ahead, weighed by the objective.

BFTrainer (arXiv:2106.12091, the MILP's objective) counts for a trainer that holds C nodes and is given n

    T S(n) - r (up  if n > C,  dw  if n < C),          r = S(C), 0 if C < min_nodes

samples, where T is the look-ahead in seconds, S the scalability curve in samples/s, and up and dw the grow and
shrink stalls in seconds. This module counts more; the published formula is its special case `PUBLISHED`. For a
pool g of nodes, let

    L(g)  be the expected seconds of the look-ahead for which its nodes stay idle for us,
    A(g)  be those of these seconds that come after a joining node's start-up,
    q(g)  be the probability that its nodes leave within the look-ahead.

L and A of several nodes are means over the nodes. A trainer's expected samples are then, if it keeps its size,
grows or shrinks,

    stay       r L(held)                                              - D
    grow       r L(held) + (S(n) - r) A(added)    - up  S(n)          - D
    shrink     r L(held) - (r - S(n)) L(given up) - dw  S(n)          - D
    D = sum over the pools g in use of  q(g) dw S(n - nodes in g)

L and A end a node's gain at the forecast end of its hole. A also leaves out the start-up seconds, in which the
trainer runs on at the size C. A stall costs samples at the new rate S(n) instead of r. D charges one stall for the
departure of each pool in use; a trainer whose nodes all leave together pays none, because nothing of it is left
to stall. Each of these effects is one field of `Terms`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from oakum_solver.objectives import TrainerFacts, worth
from oakum_solver.pools import Composition, Pools, pools_of
from oakum_solver.problem import Curve, PlannedTrainer, Problem

Floats = NDArray[np.float64]


class ValueModel:
    """Computes the value of every size and composition for a problem's J trainers, at sizes of 0 to M nodes."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.trainers = problem.trainers
        self.pools: Pools = pools_of(problem)
        self.typed = any(t.curves_by_type is not None or t.access is not None for t in self.trainers)
        """Whether it matters for some trainer which of the nodes it gets, beside their horizons."""
        terms, look_ahead_s = problem.terms, float(problem.look_ahead_s)
        self.held = [sum(composition.values()) for composition in self.pools.held]
        largest = max([t.max_nodes for t in self.trainers] + self.held, default=0)
        self.largest = min(problem.num_nodes, largest)
        """M: the largest number of nodes that a trainer holds now or may get."""
        self.rates = _rates(tuple((_main_curve(t), t.min_nodes, t.sizes) for t in self.trainers), self.largest)
        """Samples/s of trainer j that holds n nodes, 0 below its minimum; shape (J, M + 1)."""
        self._is_size = self._sizes() if any(t.sizes for t in self.trainers) else None
        self.low = _column([t.min_nodes for t in self.trainers])
        self.high = _column([min(t.max_nodes, self.largest) for t in self.trainers])
        self.grow_s = _column([t.grow_stall_s for t in self.trainers])
        self.shrink_s = _column([t.shrink_stall_s for t in self.trainers])
        self.remaining = _column([t.remaining_samples if terms.completion else math.inf for t in self.trainers])
        self.lasts_s = [pool.productive_s(look_ahead_s) for pool in self.pools.pools]
        """L of each pool, in seconds."""
        startups_s = [t.startup_s if terms.startup else 0.0 for t in self.trainers]
        self.startup_number = {startup_s: row for row, startup_s in enumerate(dict.fromkeys(startups_s))}
        self.startup_row = np.array([self.startup_number[s] for s in startups_s], dtype=np.int64)
        self.joined_s = np.array(
            [[p.productive_s(look_ahead_s, s) for p in self.pools.pools] for s in self.startup_number]
        ).reshape(len(self.startup_number), len(self.pools.pools))
        """A of each pool, in seconds; one row for each distinct start-up time, shape (start-ups, pools)."""
        self.leaving = [p.leaving(look_ahead_s) if terms.departures else 0.0 for p in self.pools.pools]
        """q of each pool."""
        if not terms.horizons:
            self.lasts_s = [look_ahead_s] * len(self.lasts_s)
            for startup_s, row in self.startup_number.items():
                self.joined_s[row] = max(0.0, look_ahead_s - startup_s)
        self.now = _column([self._rate_now(j) for j in range(len(self.trainers))])
        """r: each trainer's samples/s now, shape (J, 1)."""
        self.base = _column([self._base(j) for j in range(len(self.trainers))])
        """r L(held): expected samples of each trainer on the nodes that it holds, shape (J, 1)."""
        self.facts = self._facts()

    def _sizes(self) -> NDArray[np.bool_]:
        """Whether trainer j can train on exactly n nodes by its `sizes`; shape (J, M + 1)."""
        nodes = np.arange(self.largest + 1)
        rows = [np.isin(nodes, t.sizes) if t.sizes else np.ones(len(nodes), dtype=np.bool_) for t in self.trainers]
        return np.array(rows)

    def _facts(self) -> TrainerFacts:
        trainers = self.trainers
        return TrainerFacts(
            weight=_column([t.weight for t in trainers]),
            rate_one=_column([_rate_one(_main_curve(t)) for t in trainers]),
            best_rate=_column([_best_rate(t) for t in trainers]),
            attained_samples=_column([t.attained_samples for t in trainers]),
            remaining_samples=_column([t.remaining_samples for t in trainers]),
            deadline_in_s=_column([t.deadline_in_s for t in trainers]),
            waited_s=_column([t.waited_s for t in trainers]),
            priority=_column([float(t.priority) for t in trainers]),
        )

    def _rate_now(self, j: int) -> float:
        return self.rate(j, self.pools.held[j]) if self.held[j] >= self.trainers[j].min_nodes else 0.0

    def _base(self, j: int) -> float:
        held = self.held[j]
        return 0.0 if not held else float(self.now[j, 0]) * self._mean(self.pools.held[j], self.lasts_s)

    @staticmethod
    def _mean(composition: Composition, seconds: list[float] | Floats) -> float:
        total = sum(composition.values())
        return sum(count * float(seconds[pool]) for pool, count in composition.items()) / total

    def rate(self, j: int, composition: Composition) -> float:
        """S: samples/s of trainer j on the nodes of `composition`; 0 below its minimum, and with a node that it
        may not have."""
        nodes = sum(composition.values())
        trainer = self.trainers[j]
        if not nodes or nodes < trainer.min_nodes:
            return 0.0
        if trainer.access is not None and not all(self.may_have(j, pool) for pool in composition):
            return 0.0
        if trainer.curves_by_type is None:
            if nodes <= self.largest:
                return float(self.rates[j, nodes])
            return trainer.curve.rate(trainer.fitting(nodes))
        return typed_rate(trainer, self.types(composition))

    def by_guarantee(self) -> list[int]:
        """Indexes of the guaranteed trainers in the order in which their guarantees are kept."""

        def order(j: int) -> tuple[float, bool]:
            trainer = self.trainers[j]
            # Guarantees that began together differ by rounding.
            return -round(trainer.guaranteed_for_s, 3), self.held[j] < trainer.min_nodes

        return sorted((j for j, trainer in enumerate(self.trainers) if trainer.guaranteed), key=order)

    def may_have(self, j: int, pool: int) -> bool:
        """Whether a plan may give trainer j nodes of the pool, whatever their type."""
        access = self.trainers[j].access
        return access is None or self.pools.pools[pool].access in access

    def allowed(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether trainer j may have so many nodes; argument and result have the shape (J, sizes)."""
        within: NDArray[np.bool_] = (nodes >= self.low) & (nodes <= self.high)
        if self._is_size is not None:
            rows = np.arange(len(self.trainers))[:, None]
            within &= self._is_size[rows, np.minimum(nodes, self.largest)]
        return within

    def most(self, j: int) -> int:
        """Largest number of nodes that trainer j could have if it were alone: at most its maximum, its user's cap,
        and the problem's nodes, held or free. 0 where that is below its minimum."""
        trainer = self.trainers[j]
        most = min(trainer.max_nodes, self.largest)
        if trainer.user is not None:
            most = min(most, self.problem.user_caps.get(trainer.user, most))
        return trainer.fitting(most)

    def best_rate(self, j: int) -> float:
        """Samples/s of trainer j on its maximum number of nodes of its fastest type."""
        trainer = self.trainers[j]
        curves = [trainer.curve] if trainer.curves_by_type is None else list(trainer.curves_by_type.values())
        return max(_rate_at(curve, trainer.max_nodes) for curve in curves)

    def types(self, composition: Composition) -> dict[str, int]:
        """Number of nodes of each node type in `composition`."""
        counts: dict[str, int] = {}
        for pool, count in composition.items():
            node_type = self.pools.pools[pool].node_type
            counts[node_type] = counts.get(node_type, 0) + count
        return counts

    def samples(self, j: int, after: Composition) -> float:
        """Expected samples of trainer j over the look-ahead, stalls taken off, when it goes from its present nodes
        to `after`.

        Negative where stalls outweigh what it trains. The formula is in the module's docstring.
        """
        trainer, terms = self.trainers[j], self.problem.terms
        before, held, nodes = self.pools.held[j], self.held[j], sum(after.values())
        now, then = float(self.now[j, 0]), self.rate(j, after)
        samples = float(self.base[j, 0]) - self._departures(j, after, nodes)
        if nodes > held:
            added = {p: k for pool, n in after.items() if (k := n - before.get(p := pool, 0)) > 0}
            joined_s = self.joined_s[self.startup_row[j]]
            samples += (then - now) * self._mean(added, joined_s)
            samples -= trainer.grow_stall_s * (then if terms.new_rate else now)
        elif nodes < held:
            given_up = {p: k for pool, n in before.items() if (k := n - after.get(p := pool, 0)) > 0}
            samples -= (now - then) * self._mean(given_up, self.lasts_s)
            samples -= trainer.shrink_stall_s * (then if terms.new_rate else now)
        return min(samples, float(self.remaining[j, 0]))

    def _departures(self, j: int, composition: Composition, nodes: int) -> float:
        """D of the module's docstring: expected samples lost to stalls when pools leave."""
        if len(composition) < 2 or not self.problem.terms.departures:
            return 0.0
        lost_rate = 0.0
        for pool, count in composition.items():
            rest = composition if self.typed else None
            if rest is None:
                lost_rate += self.leaving[pool] * float(self.rates[j, min(nodes - count, self.largest)])
            else:
                lost_rate += self.leaving[pool] * self.rate(j, {p: k for p, k in rest.items() if p != pool})
        return self.trainers[j].shrink_stall_s * lost_rate

    def stall_samples(self, j: int, after: Composition) -> float:
        """Samples that trainer j loses in the stall of going from its present nodes to `after`. The samples D
        that the trainer is expected to lose when pools leave are not included."""
        trainer, nodes = self.trainers[j], sum(after.values())
        if nodes == self.held[j]:
            return 0.0
        stall_s = trainer.grow_stall_s if nodes > self.held[j] else trainer.shrink_stall_s
        return stall_s * (self.rate(j, after) if self.problem.terms.new_rate else float(self.now[j, 0]))

    def value(self, j: int, after: Composition) -> float:
        """Value of trainer j with the nodes `after`, in the objective's unit."""
        samples = np.array([[self.samples(j, after)]])
        nodes = np.array([[sum(after.values())]], dtype=np.int64)
        facts, look_ahead_s = facts_of_trainer(self.facts, j), self.problem.look_ahead_s
        return float(worth(self.problem.objective, facts, look_ahead_s, samples, nodes)[0, 0])

    def values(self, compositions: Sequence[Composition]) -> list[float]:
        """Value of each trainer with its composition, in the objective's unit; one composition per trainer."""
        samples = [self.samples(j, after) for j, after in enumerate(compositions)]
        return self.worths(samples, [sum(after.values()) for after in compositions])

    def worths(self, samples: Sequence[float], nodes: Sequence[int]) -> list[float]:
        """Value of each trainer, given its net samples and its number of nodes."""
        sizes = np.array(nodes, dtype=np.int64).reshape(-1, 1)
        return [float(value) for value in self.worth(_column(list(samples)), sizes)[:, 0]]

    def worth(self, samples: Floats, nodes: NDArray[np.int64]) -> Floats:
        """Value, in the objective's unit, of net samples made on so many nodes; both arguments and the result have
        the shape (J, sizes)."""
        samples = np.minimum(samples, self.remaining)
        return worth(self.problem.objective, self.facts, self.problem.look_ahead_s, samples, nodes)

    def kept(self, j: int, nodes: int) -> Composition:
        """The nodes that trainer j keeps when it shrinks to `nodes` nodes, in the order of `keep_order`."""
        kept: Composition = {}
        for pool, count in self.keep_order(j):
            if nodes <= 0:
                break
            kept[pool] = min(count, nodes)
            nodes -= kept[pool]
        return kept

    @functools.cache  # noqa: B019 - the model lives for one solve
    def keep_order(self, j: int) -> tuple[tuple[int, int], ...]:
        """(pool, number of nodes) for each pool of which trainer j holds nodes; the pool that it would give up
        last comes first.

        Pools on which the trainer can run come first; among those, the ones with the largest product of
        expected idle seconds and speed, then those of which it holds most.
        """
        held = self.pools.held[j]
        return tuple(
            sorted(
                held.items(),
                key=lambda item: (
                    item[0] not in self._preferred(j),
                    -self.lasts_s[item[0]] * self._speed(j, item[0]),
                    -item[1],
                    item[0],
                ),
            )
        )

    def _speed(self, j: int, pool: int) -> float:
        """Samples/s of trainer j on one node of the pool; 1 for a trainer without curves by type."""
        curves = self.trainers[j].curves_by_type
        curve = None if curves is None else curves.get(self.pools.pools[pool].node_type)
        return 1.0 if curve is None else _rate_one(curve)

    @functools.cache  # noqa: B019 - the model lives for one solve
    def _preferred(self, j: int) -> frozenset[int]:
        """Pools of the held nodes that trainer j can run on together: those of all usable types if it mixes types,
        else of the one on which it is fastest."""
        curves = self.trainers[j].curves_by_type
        held = {pool: count for pool, count in self.pools.held[j].items() if self.may_have(j, pool)}
        if curves is None:
            return frozenset(held)
        counts = self.types(held)
        usable = sorted(counts.keys() & curves.keys())
        if usable and not self.trainers[j].mixes_types:
            usable = [max(usable, key=lambda node_type: curves[node_type].rate(counts[node_type]))]
        return frozenset(pool for pool in held if self.pools.pools[pool].node_type in usable)

    def usable(self, j: int) -> int:
        """Number of the nodes held by trainer j that it can run on together: those of all usable types if it mixes
        types, else those of the type on which it is fastest."""
        return sum(self.pools.held[j][pool] for pool in self._preferred(j))

    def rate_row(self, j: int, composition: Composition, pool: int, most: int) -> Floats:
        """Samples/s of trainer j, which has curves by type, on `composition` and 0 to `most` more nodes of the
        pool.

        Shape (most + 1,).
        """
        trainer, node_type = self.trainers[j], self.pools.pools[pool].node_type
        counts = self.types(composition)
        row = np.zeros(most + 1)
        row[0] = self.rate(j, composition)
        if (common := _common_curve(trainer, {*counts, node_type})) is None:
            return row
        curve, shares = common
        more = np.arange(most + 1)
        nodes = sum(counts.values()) + more
        # The same operations in the same order as in `typed_rate`: at the last size without progress, a sum that
        # is rounded otherwise has a rate above 0.
        effective = np.zeros(most + 1)
        for kind, share in shares.items():
            effective += (counts.get(kind, 0) + (more if kind == node_type else 0)) * share
        if trainer.sizes:
            fitting = _fitting(nodes, trainer.sizes)
            effective = np.where(fitting == nodes, effective, effective * fitting / np.maximum(nodes, 1))
        points = np.array([(0.0, 0.0), *curve.points])
        rates = np.interp(effective, points[:, 0], points[:, 1])
        row[1:] = np.where(nodes >= trainer.min_nodes, rates, 0.0)[1:]
        return row


def facts_of_trainer(facts: TrainerFacts, j: int) -> TrainerFacts:
    """The facts of trainer j alone. Each field of `facts` must be an array of shape (trainers, 1), and is an array
    of shape (1, 1) in the result."""
    return TrainerFacts(
        **{field.name: getattr(facts, field.name)[j : j + 1] for field in dataclasses.fields(facts)}
    )


def typed_rate(trainer: PlannedTrainer, counts: Mapping[str, int]) -> float:
    """Samples/s of a trainer with curves by type on `counts` nodes (node type -> number of nodes).

    On several types, the curve of the fastest type is read at the effective number of nodes
    sum over types of nodes x (rate of one node) / (rate of one node of the fastest type), because a synchronous
    step shares its batch in proportion to speed. 0 where the trainer may not mix these types or has no curve for
    one of them. Of more nodes than it can train on together, each counts in part.
    """
    if (common := _common_curve(trainer, counts.keys())) is None:
        return 0.0
    curve, shares = common
    effective = 0.0
    for node_type, share in shares.items():
        effective += counts[node_type] * share  # `sum` rounds otherwise from Python 3.12 on
    nodes = sum(counts.values())
    if trainer.sizes and (fitting := trainer.fitting(nodes)) != nodes:
        effective = effective * fitting / nodes
    low = math.floor(effective)
    rest = effective - low
    return (1 - rest) * curve.rate(low) + rest * curve.rate(low + 1)


def _common_curve(trainer: PlannedTrainer, present: Set[str]) -> tuple[Curve, dict[str, float]] | None:
    """The curve of the fastest of the node types `present`, and for each of them how many nodes of the fastest
    type one of its nodes counts as. None if the trainer cannot run on them together."""
    curves = trainer.curves_by_type or {}
    if not present <= curves.keys() or (len(present) > 1 and not trainer.mixes_types):
        return None
    ones = {node_type: _rate_one(curve) for node_type, curve in curves.items() if node_type in present}
    fastest = max(ones, key=lambda node_type: ones[node_type])
    return curves[fastest], {node_type: one / ones[fastest] for node_type, one in ones.items()}


def _main_curve(trainer: PlannedTrainer) -> Curve:
    """The curve of the trainer's fastest type; its only curve where it has none by type."""
    if trainer.curves_by_type is None:
        return trainer.curve
    return max(trainer.curves_by_type.values(), key=_rate_one)


def _best_rate(trainer: PlannedTrainer) -> float:
    return _rate_at(_main_curve(trainer), trainer.max_nodes) or 1.0


@functools.lru_cache(maxsize=4096)
def _rate_at(curve: Curve, nodes: int) -> float:
    return curve.rate(nodes)


@functools.lru_cache(maxsize=4096)
def _rate_one(curve: Curve) -> float:
    """Samples/s on one node; where that is 0, the rate per node of the curve's first point with a rate above 0."""
    if curve.rate(1) > 0:
        return curve.rate(1)
    return next((rate / nodes for nodes, rate in curve.points if rate > 0), 1.0)


@functools.lru_cache(maxsize=64)
def _rates(curves: tuple[tuple[Curve, int, tuple[int, ...]], ...], largest: int) -> Floats:
    rows = [_rate_row(curve, min_nodes, sizes, largest) for curve, min_nodes, sizes in curves]
    return np.array(rows).reshape(len(curves), largest + 1)


@functools.lru_cache(maxsize=4096)
def _rate_row(curve: Curve, min_nodes: int, sizes: tuple[int, ...], largest: int) -> Floats:
    points = np.array([(0.0, 0.0), *curve.points])
    row: Floats = np.interp(_fitting(np.arange(largest + 1), sizes), points[:, 0], points[:, 1])
    row[:min_nodes] = 0.0
    return row


def _fitting(nodes: NDArray[np.int64], sizes: tuple[int, ...]) -> NDArray[np.int64]:
    """For each number of nodes the largest of `sizes` up to it, 0 where it is below them all; the numbers
    themselves where there are no sizes."""
    if not sizes:
        return nodes
    fitting: NDArray[np.int64] = np.array([0, *sizes])[np.searchsorted(sizes, nodes, side="right")]
    return fitting


def _column(values: list[float] | list[int]) -> Floats:
    return np.array(values, dtype=np.float64).reshape(-1, 1)
