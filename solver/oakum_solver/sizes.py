"""How much each trainer would be worth at each size, before it is known which nodes it gets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from oakum_solver.value import Floats, ValueModel


def size_values(model: ValueModel) -> Floats:
    """Worth of trainer j at n nodes, shape (J, M + 1), -inf where n is not allowed.

    Exact where a trainer stays or shrinks, and everywhere where all nodes are alike. Where they are not, a
    trainer that grows is taken to get its nodes from one pool more, of the mean that is to be had.
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
    allowed = (nodes == 0) | ((nodes >= model.low) & (nodes <= most))
    return np.where(allowed, worth, -np.inf)


def _less(model: ValueModel) -> Floats:
    """Net samples of a trainer that shrinks, where it holds nodes of one pool only."""
    lasts_s = np.array([[model.lasts_s[next(iter(held))] if held else 0.0] for held in model.pools.held])
    stalled = model.rates if model.problem.terms.new_rate else model.now
    samples: Floats = model.base - (model.now - model.rates) * lasts_s - model.shrink_s * stalled
    return samples


def _grown(model: ValueModel, held: NDArray[np.int64], nodes: NDArray[np.int64]) -> Floats:
    """Net samples of a trainer that keeps what it holds and gets nodes of one pool more."""
    market = model.pools.free if any(model.pools.free) else [pool.size for pool in model.pools.pools]
    share = np.array(market, dtype=np.float64) / max(1, sum(market))
    joined_s = (model.joined_s @ share)[model.startup_row][:, None]
    rates = model.rates
    grow = model.grow_s * (rates if model.problem.terms.new_rate else model.now)
    samples = model.base + (rates - model.now) * joined_s - grow
    if model.problem.terms.departures and len(market) > 1:
        leaving = float(np.array(model.leaving) @ share)
        rows = np.arange(len(rates))[:, None]
        stalls = leaving * rates[rows, np.minimum(held, model.largest)] + _stalls_of_held(model)
        samples = samples - model.shrink_s * stalls
    grown: Floats = samples
    return grown


def _stalls_of_held(model: ValueModel) -> Floats:
    """sum over the pools held of q S(n - nodes held of it), shape (J, M + 1)."""
    stalls = np.zeros_like(model.rates)
    for j, composition in enumerate(model.pools.held):
        row, rates = stalls[j], model.rates[j]
        for pool, count in composition.items():
            row[count:] += model.leaving[pool] * rates[: max(0, len(rates) - count)]
    return stalls


def _shrunk(model: ValueModel, j: int, departures: bool = True) -> Floats:
    """Net samples of trainer j at 0, 1, ... nodes, fewer than it holds; shape (nodes held,)."""
    order = model.keep_order(j)
    size, terms = model.held[j], model.problem.terms
    counts = np.array([count for _, count in order])
    nodes = np.arange(size)
    before = np.cumsum(counts) - counts
    kept = np.clip(nodes[:, None] - before, 0, counts)
    rates = np.zeros(size)
    known = min(size, model.largest + 1)
    rates[:known] = model.rates[j, :known]
    lasts_s = np.array([model.lasts_s[pool] for pool, _ in order])
    given_up_s = ((counts - kept) @ lasts_s) / (size - nodes)
    now = float(model.now[j, 0])
    stall_s = model.trainers[j].shrink_stall_s
    samples: Floats = (
        float(model.base[j, 0]) - (now - rates) * given_up_s - stall_s * (rates if terms.new_rate else now)
    )
    if terms.departures and departures:
        leaving = np.array([model.leaving[pool] for pool, _ in order])
        left = rates[nodes[:, None] - kept] * (kept > 0)
        samples -= stall_s * (left @ leaving)
    return samples


def best_of_keeping(model: ValueModel) -> Floats:
    """No less than the worth of keeping any n of the nodes held, as `size_values`; -inf for more than are held.

    Who shrinks is taken to keep the nodes that last longest and to pay for no departure.
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
    """(values, weights, capacity) of a knapsack that no plan is worth more than.

    A node weighs the seconds that it is expected to be productive after the shortest start-up. Who grows is
    taken to choose freely between the pool that lasts longest and the one that ends first, whatever the others
    take, and to pay no more for departures than it would without the new nodes. Shape (J, 2 (M + 1)): first
    the choices with the longest, then those with the shortest.
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
    """sum over the pools held of q S(nodes held - nodes of it), shape (J, 1): what more nodes cannot lower."""
    least = np.zeros((len(model.trainers), 1))
    for j, composition in enumerate(model.pools.held):
        if len(composition) > 1:
            for pool, count in composition.items():
                least[j] += model.leaving[pool] * model.rates[j, min(model.held[j] - count, model.largest)]
    return least
