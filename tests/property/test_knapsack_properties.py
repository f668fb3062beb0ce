"""The knapsack over sizes, held against every choice and every price."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import best_choice
from num_examples import scaled
from oakum_solver.knapsack import Floats, Sizes, exact, fill, proves_optimal, relax, total

SCALES = st.sampled_from((1e-6, 1.0, 1e9))


@st.composite
def tables(draw: st.DrawFn, zero_allowed: bool = True) -> Floats:
    """Worths of up to four trainers at up to eight sizes, some of them not allowed."""
    num_trainers, largest = draw(st.integers(1, 4)), draw(st.integers(0, 8))
    worths = st.one_of(st.integers(-50, 200).map(float), st.just(-math.inf))
    cells = num_trainers * (largest + 1)
    values = np.array(draw(st.lists(worths, min_size=cells, max_size=cells))) * draw(SCALES)
    values = values.reshape(num_trainers, largest + 1)
    values[~np.isfinite(values).any(axis=1), draw(st.integers(0, largest))] = 0.0
    if zero_allowed:
        values[:, 0] = np.where(np.isfinite(values[:, 0]), values[:, 0], 0.0)
    return values


@st.composite
def choices(draw: st.DrawFn, values: Floats, num_nodes: int) -> Sizes:
    """Any allowed sizes that fit; the smallest sizes where the drawn ones do not fit."""
    allowed = [np.flatnonzero(np.isfinite(row)).tolist() for row in values]
    drawn = [draw(st.sampled_from(sizes)) for sizes in allowed]
    return np.array(drawn if sum(drawn) <= num_nodes else [sizes[0] for sizes in allowed], dtype=np.int64)


def lowest_bound(values: Floats, weights: Floats, capacity: float) -> float:
    """The minimum of the bound over prices: convex, it bends only where two choices are worth the same."""
    prices = {0.0}
    for row, heavy in zip(values, weights, strict=True):
        known = np.flatnonzero(np.isfinite(row))
        for a, b in itertools.combinations(known.tolist(), 2):
            if heavy[a] != heavy[b]:
                prices.add(max(0.0, (row[b] - row[a]) / (heavy[b] - heavy[a])))
    return min(p * capacity + float((values - p * weights).max(axis=1).sum()) for p in prices)


def close(values: Floats) -> float:
    """Whether two sums of worths are equal except for rounding."""
    return 1e-8 * float(np.abs(values[np.isfinite(values)]).max(initial=0.0)) * len(values)


@given(tables(zero_allowed=False), st.integers(0, 12))
def test_the_relaxation_is_the_linear_programs_optimum(values: Floats, num_nodes: int) -> None:
    weights = np.broadcast_to(np.arange(values.shape[1], dtype=np.float64), values.shape)
    best = best_choice(values, num_nodes)
    found = relax(values, num_nodes)
    if best == -math.inf:
        assert found is None
        return
    assert found is not None
    assert found.bound == pytest.approx(lowest_bound(values, weights, num_nodes), abs=close(values))
    assert found.bound >= best - close(values)
    assert found.sizes.sum() <= num_nodes
    assert np.isfinite(total(values, found.sizes))
    assert found.price >= 0


@given(st.data(), tables(), st.floats(0, 30))
def test_the_relaxation_takes_any_weights(data: st.DataObject, values: Floats, capacity: float) -> None:
    steps = st.lists(st.floats(0.05, 7), min_size=values.size, max_size=values.size)
    weights = np.cumsum(np.array(data.draw(steps)).reshape(values.shape), axis=1)
    weights -= weights[:, :1]
    found = relax(values, capacity, weights)
    assert found is not None
    assert found.bound == pytest.approx(lowest_bound(values, weights, capacity), abs=close(values))
    assert weights[np.arange(len(values)), found.sizes].sum() <= capacity


@settings(max_examples=scaled(60))
@given(tables(), st.integers(0, 12))
def test_a_size_costs_at_least_what_its_price_says(values: Floats, num_nodes: int) -> None:
    found = relax(values, num_nodes)
    assert found is not None
    for trainer, size in zip(*np.nonzero(np.isfinite(values)), strict=True):
        fixed = values.copy()
        fixed[trainer] = -math.inf
        fixed[trainer, size] = values[trainer, size]
        missed = found.best[trainer] - (values[trainer, size] - found.price * size)
        assert best_choice(fixed, num_nodes) <= found.bound - missed + close(values)


@given(st.data(), tables(), st.integers(0, 12))
def test_filling_fits_and_never_lowers_the_worth(data: st.DataObject, values: Floats, num_nodes: int) -> None:
    start = data.draw(choices(values, num_nodes))
    filled = fill(values, start, num_nodes)
    assert (filled >= start).all()
    assert filled.sum() <= num_nodes
    assert total(values, filled) >= total(values, start)
    left = num_nodes - int(filled.sum())
    for row, size in zip(values, filled.tolist(), strict=True):
        assert row[size : size + left + 1].max() <= row[size], "a jump that gains was left out"


@settings(max_examples=scaled(200))
@given(st.data(), tables(zero_allowed=False), st.integers(0, 12))
def test_the_dynamic_program_finds_the_optimum_from_any_choice(
    data: st.DataObject, values: Floats, num_nodes: int
) -> None:
    found = relax(values, num_nodes)
    if found is None:
        return
    start = data.draw(choices(values, num_nodes))
    best = exact(values, num_nodes, start, found)
    assert best is not None
    assert best.sum() <= num_nodes
    optimum = best_choice(values, num_nodes)
    assert total(values, best) == pytest.approx(optimum, abs=close(values))
    if proves_optimal(found.bound, total(values, start)):
        assert total(values, start) == pytest.approx(optimum, rel=1e-8, abs=1e-300)
