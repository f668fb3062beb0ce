"""The fastest of several ways is found on a machine whose speed changes all the time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from oakum_worker.profiling.alternating import Compared, compare


def _busy_machine(costs: dict[str, float], seed: int, noise: float = 0.03) -> Callable[[str], float]:
    """Times of the ways while others slow the machine by up to four times, for some turns at once, and interrupt
    one turn of six."""
    draw = random.Random(seed)
    state = {"slow": 1.0}

    def time_once(way: str) -> float:
        if draw.random() < 0.1:
            state["slow"] = draw.choice((1.0, 1.5, 4.0))
        interrupted = draw.uniform(1.5, 8.0) if draw.random() < 1 / 6 else 1.0
        return costs[way] * state["slow"] * interrupted * draw.lognormvariate(0, noise)

    return time_once


def _clock(step: float = 0.0) -> Callable[[], float]:
    ticks: Iterator[float] = (step * number for number in count())
    return lambda: next(ticks)


def _found(costs: dict[str, float], seed: int) -> Compared[str]:
    return compare(list(costs), _busy_machine(costs, seed), clock=_clock())


def test_the_fastest_way_is_found_whatever_disturbs_the_machine() -> None:
    costs = {"a": 1.30, "b": 1.02, "c": 1.0, "d": 1.1, "e": 2.0}
    chosen = [costs[_found(costs, seed).fastest] for seed in range(200)]
    assert sum(cost <= 1.05 for cost in chosen) >= 198
    assert max(chosen) <= 1.1


def test_the_least_time_of_each_way_would_have_chosen_wrongly() -> None:
    """Otherwise this machine would be no test of rounds."""
    costs = {"a": 1.30, "b": 1.02, "c": 1.0, "d": 1.1, "e": 2.0}
    wrong = 0
    for seed in range(200):
        time_once = _busy_machine(costs, seed)
        least = {way: min(time_once(way) for _ in range(5)) for way in costs}
        wrong += costs[min(least, key=lambda way: least[way])] > 1.05
    assert wrong > 10


def test_times_keep_the_ratios_of_the_ways() -> None:
    costs = {"a": 1e-3, "b": 3e-3, "c": 1.2e-3}
    found = _found(costs, 5)
    assert found.seconds["b"] / found.seconds["a"] == pytest.approx(3, rel=0.1)
    assert found.seconds["a"] == pytest.approx(1e-3, rel=0.25)


def test_ways_that_are_as_fast_end_with_what_is_left_uncertain() -> None:
    found = compare(["a", "b"], _busy_machine({"a": 1.0, "b": 1.0}, 3, noise=0.5), clock=_clock())
    assert found.rounds == 60
    assert 0.02 < found.uncertainty < 0.6


def test_a_clear_case_takes_few_rounds_and_leaves_the_slower_way_out() -> None:
    asked: list[str] = []

    def time_once(way: str) -> float:
        asked.append(way)
        return {"fast": 1.0, "slow": 2.0, "equal": 1.001}[way]

    found = compare(["slow", "fast", "equal"], time_once, clock=_clock())
    assert (found.fastest, found.uncertainty, found.rounds) == ("fast", 0.0, 4)
    assert asked[:6] == ["slow", "fast", "equal", "equal", "fast", "slow"]


def test_slow_ways_are_not_timed_for_longer_than_asked() -> None:
    noisy = _busy_machine({"a": 1.0, "b": 1.0}, 1, noise=0.5)
    assert compare(["a", "b"], noisy, enough_s=5.0, clock=_clock(step=3.0)).rounds == 2
    assert compare(["a"], lambda _: 1.0, clock=_clock()).rounds == 4
    with pytest.raises(ValueError, match="at least one"):
        compare([], lambda _: 1.0)
