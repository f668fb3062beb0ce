"""The value of each trainer at each size, before it is known which nodes it gets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from oakum_solver.value import Floats, ValueModel


def size_values(model: ValueModel) -> Floats:
    """Value of trainer j at n nodes, shape (J, M + 1); -inf where n is not allowed.

    Exact if all nodes are alike, and for a trainer that stays or shrinks. Otherwise a trainer that grows is taken
    to get its new nodes from one additional pool with the mean properties of the free nodes.
    """
    held = np.array(model.held, dtype=np.int64)[:, None]
    nodes = np.arange(model.largest + 1)
    samples = np.where(nodes > held, _grown(model, held, nodes), np.where(nodes < held, _less(model), model.base))
    for j, composition in enumerate(model.pools.held):
        size = model.held[j]
        if len(composition) < 2:
            continue
        width = min(size, model.largest + 1)
        samples[j, :width] = _shrunk(model, j)[:width]
        if size <= model.largest:
            samples[j, size] = model.samples(j, composition)
    worth = model.worth(samples, np.broadcast_to(nodes, samples.shape))
    most = np.array([model.most(j) for j in range(len(model.trainers))]).reshape(-1, 1)
    allowed = (nodes == 0) | (model.allowed(np.broadcast_to(nodes, samples.shape)) & (nodes <= most))
    return np.where(allowed, worth, -np.inf)


def _less(model: ValueModel) -> Floats:
    """Net samples of each trainer if it shrinks to n nodes, or stays, shape (J, M + 1). Valid for trainers
    whose nodes are all of one pool."""
    lasts_s = np.array([[model.lasts_s[next(iter(held))] if held else 0.0] for held in model.pools.held])
    stalled = model.rates if model.problem.terms.new_rate else model.now
    samples: Floats = model.base - (model.now - model.rates) * lasts_s - model.shrink_s * stalled
    return samples


def _grown(model: ValueModel, held: NDArray[np.int64], nodes: NDArray[np.int64]) -> Floats:
    """Net samples of each trainer if it keeps its nodes and grows to n with nodes of one additional mean pool."""
    available = model.pools.free if any(model.pools.free) else [pool.size for pool in model.pools.pools]
    share = np.array(available, dtype=np.float64) / max(1, sum(available))
    joined_s = (model.joined_s @ share)[model.startup_row][:, None]
    rates = model.rates
    grow = model.grow_s * (rates if model.problem.terms.new_rate else model.now)
    samples = model.base + (rates - model.now) * joined_s - grow
    if model.problem.terms.departures and len(available) > 1:
        leaving = float(np.array(model.leaving) @ share)
        rows = np.arange(len(rates))[:, None]
        stalls = leaving * rates[rows, np.minimum(held, model.largest)] + _stalls_of_held(model)
        samples = samples - model.shrink_s * stalls
    grown: Floats = samples
    return grown


def _stalls_of_held(model: ValueModel) -> Floats:
    """sum over the held pools g of q(g) S(n - held nodes of g) for n = 0 ... M, shape (J, M + 1)."""
    stalls = np.zeros_like(model.rates)
    for j, composition in enumerate(model.pools.held):
        row, rates = stalls[j], model.rates[j]
        for pool, count in composition.items():
            row[count:] += model.leaving[pool] * rates[: max(0, len(rates) - count)]
    return stalls


def _shrunk(model: ValueModel, j: int, departures: bool = True) -> Floats:
    """Net samples of trainer j if it keeps 0, 1, ... of its nodes, but not all: shape (held nodes,). It gives
    nodes up in the order of `ValueModel.keep_order`.

    Without `departures`, stalls that are expected when pools leave are not charged.
    """
    order = model.keep_order(j)
    size, terms = model.held[j], model.problem.terms
    counts = np.array([count for _, count in order])
    nodes = np.arange(size)
    before = np.cumsum(counts) - counts
    kept = np.clip(nodes[:, None] - before, 0, counts)
    rates = np.zeros(size)
    num_rates = min(size, model.largest + 1)
    rates[:num_rates] = model.rates[j, :num_rates]
    lasts_s = np.array([model.lasts_s[pool] for pool, _ in order])
    given_up_s = ((counts - kept) @ lasts_s) / (size - nodes)
    now = float(model.now[j, 0])
    stall_s = model.trainers[j].shrink_stall_s
    samples: Floats = (
        float(model.base[j, 0]) - (now - rates) * given_up_s - stall_s * (rates if terms.new_rate else now)
    )
    if terms.departures and departures:
        leaving = np.array([model.leaving[pool] for pool, _ in order])
        remaining_rates = rates[nodes[:, None] - kept] * (kept > 0)
        samples -= stall_s * (remaining_rates @ leaving)
    return samples


def best_of_keeping(model: ValueModel) -> Floats:
    """Upper bound on the value of keeping any n of the held nodes, shape (J, M + 1); -inf above the held number.

    A shrinking trainer is taken to keep the nodes that last longest and to pay for no departure.
    """
    values = size_values(model)
    nodes = np.arange(model.largest + 1)
    held = np.array(model.held, dtype=np.int64)[:, None]
    several = [j for j, composition in enumerate(model.pools.held) if len(composition) > 1]
    if several and model.problem.terms.departures:
        samples = np.zeros_like(values)
        for j in several:
            samples[j, : model.held[j]] = _shrunk(model, j, departures=False)
        worth = model.worth(samples, np.broadcast_to(nodes, samples.shape))
        rows = np.zeros((len(values), 1), dtype=np.bool_)
        rows[several] = True
        values = np.where(rows & (nodes < held) & np.isfinite(values), worth, values)
    return np.where(nodes <= held, values, -np.inf)


def upper_values(model: ValueModel) -> tuple[Floats, Floats, float]:
    """(values, weights, capacity) of a knapsack whose optimum bounds every plan from above.

    A node weighs the seconds for which it is expected to be productive after the shortest start-up. A growing
    trainer chooses freely between the pool that lasts longest and the one that ends first, whatever the others
    take, and pays no more for departures than without the new nodes. Values and weights have the shape
    (J, 2 (M + 1)): the choices of the longest pool, then those of the shortest.
    """
    pools = model.pools.pools
    weight_s = model.joined_s[int(np.argmin(list(model.startup_number)))] if pools else np.zeros(0)
    capacity = float(sum(pool.size * seconds for pool, seconds in zip(pools, weight_s, strict=True)))
    longest, shortest = float(weight_s.max(initial=0.0)), float(weight_s.min(initial=math.inf))
    shortest = min(shortest, longest)
    held, nodes = np.array(model.held, dtype=np.int64)[:, None], np.arange(model.largest + 1)
    values = np.where(nodes <= held, best_of_keeping(model), size_values(model))
    weights = np.zeros_like(values)
    for j in range(len(values)):
        mine = np.array(sorted(weight_s[pool] for pool, count in model.keep_order(j) for _ in range(count)))
        sums = np.concatenate([[0.0], np.cumsum(mine)])
        weights[j] = sums[np.minimum(nodes, len(mine))]
    more = np.maximum(nodes - held, 0)
    grows = (nodes > held) & np.isfinite(values)
    columns = []
    for seconds in (longest, shortest):
        samples = model.base + (model.rates - model.now) * seconds
        samples -= model.grow_s * (model.rates if model.problem.terms.new_rate else model.now)
        if model.problem.terms.departures:
            samples -= model.shrink_s * _least_stalls(model)
        worth = model.worth(samples, np.broadcast_to(nodes, samples.shape))
        columns.append((np.where(grows, worth, values), weights + more * seconds))
    return np.hstack([c[0] for c in columns]), np.hstack([c[1] for c in columns]), capacity


def _least_stalls(model: ValueModel) -> Floats:
    """sum over the held pools g of q(g) S(held nodes - nodes of g), shape (J, 1): no additional node lowers it."""
    least = np.zeros((len(model.trainers), 1))
    for j, composition in enumerate(model.pools.held):
        if len(composition) > 1:
            for pool, count in composition.items():
                least[j] += model.leaving[pool] * model.rates[j, min(model.held[j] - count, model.largest)]
    return least
