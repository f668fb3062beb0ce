"""What millions of past holes say of how long one goes on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakum_solver.forecast import HoleForecast
from oakum_solver.logs.holes import HoleLog
from oakum_solver.problem import Curve, PlannedTrainer, Problem
from oakum_solver.replay import engine
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import solve

RATIO = 1.2
LENGTHS = st.lists(st.floats(0.01, 1e7), min_size=1, max_size=60)


def learnt(lengths_s: list[float], default_s: float = 1800.0, least: int = 1) -> HoleForecast:
    forecast = HoleForecast(default_s, least)
    forecast.learn(np.array(lengths_s))
    return forecast


def remaining_s(forecast: HoleForecast, *ages_s: float) -> list[float]:
    return [float(seconds) for seconds in forecast.remaining_s(np.array(ages_s))]


def mean_residual_life(lengths_s: list[float], age_s: float) -> tuple[float, int]:
    """(mean of what holes longer than `age_s` had still to come, how many they are)."""
    longer = [length - age_s for length in lengths_s if length > age_s]
    return (float(np.mean(longer)) if longer else 0.0), len(longer)


def test_the_mean_of_what_longer_holes_had_still_to_come() -> None:
    lengths = [10.0, 100.0, 200.0, 300.0]
    assert remaining_s(learnt(lengths), 0.0, 50.0, 150.0, 250.0) == [152.5, 150.0, 100.0, 50.0]


def test_the_answer_rises_with_age_where_short_holes_are_many() -> None:
    answers = remaining_s(learnt([5.0] * 90 + [3600.0] * 10), 1.0, 60.0)
    assert answers == pytest.approx([0.9 * 5.0 + 0.1 * 3600.0 - 1.0, 3540.0])


def test_until_enough_is_learnt_the_answer_is_the_default() -> None:
    forecast = HoleForecast(default_s=77.0, least=3)
    assert remaining_s(forecast, 0.0, 1e9) == [77.0, 77.0]
    forecast.learn(np.array([100.0, 200.0]))
    assert remaining_s(forecast, 0.0) == [77.0]
    forecast.learn(np.array([300.0]))
    assert remaining_s(forecast, 0.0, 150.0) == [200.0, 77.0]


def test_who_has_learnt_nothing_never_answers_from_experience() -> None:
    assert remaining_s(HoleForecast(default_s=77.0, least=0), 0.0, 50.0) == [77.0, 77.0]


def test_to_learn_nothing_changes_nothing() -> None:
    forecast = learnt([10.0, 20.0])
    forecast.learn(np.zeros(0))
    assert remaining_s(forecast, 0.0) == [15.0]


@given(lengths=LENGTHS, age_s=st.floats(0.0, 2e7), least=st.integers(1, 5))
def test_the_answer_is_right_for_an_age_at_most_a_bin_further(
    lengths: list[float], age_s: float, least: int
) -> None:
    """It is the mean residual life at the upper edge of the age's bin, counted from the age itself."""
    edges = RATIO ** np.arange(100)
    (answer_s,) = remaining_s(learnt(lengths, 1800.0, least), age_s)
    beyond = edges[edges >= age_s]
    edge_s = float(beyond[0]) if len(beyond) else np.inf
    assert edge_s <= max(1.0, age_s * RATIO * 1.0001) or edge_s == np.inf
    expected_s, longer = mean_residual_life(lengths, edge_s)
    if longer < least:
        assert answer_s == 1800.0
    else:
        assert answer_s == pytest.approx(max(1.0, expected_s + edge_s - age_s), rel=1e-6, abs=1e-6)


@given(lengths=LENGTHS, parts=st.integers(1, 4), ages=st.lists(st.floats(0.0, 1e7), max_size=5))
def test_the_order_and_the_portions_in_which_holes_are_learnt_do_not_matter(
    lengths: list[float], parts: int, ages: list[float]
) -> None:
    forecast = HoleForecast(least=1)
    for part in np.array_split(np.array(sorted(lengths)), parts):
        forecast.learn(part)
    assert remaining_s(forecast, *ages) == pytest.approx(remaining_s(learnt(lengths), *ages), rel=1e-6, abs=1e-6)


def test_a_replay_learns_from_holes_that_ended_and_from_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, list[float]]] = []
    original = solve

    def listen(problem: Problem, *args: object, **settings: object) -> object:
        told.append((problem.num_nodes, sorted({group.horizon_s for group in problem.groups})))
        return original(problem, *args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "solve", listen)
    monkeypatch.setattr(engine, "HoleForecast", lambda: HoleForecast(default_s=77.0, least=1))
    log = HoleLog(
        name="log.csv",
        nodes=("a", "b", "c", "d"),
        node=np.arange(4, dtype=np.int32),
        start_s=np.array([0.0, 0.0, 0.0, 15.0]),
        end_s=np.array([10.0, 20.0, 30.0, 40.0]),
        duration_s=40.0,
    )
    work = Workload((WorkItem(PlannedTrainer("x", Curve(((1, 10.0),)), max_nodes=4)),))
    engine.replay(log, work, ReplaySettings(groups=True, policy="greedy"))
    # At 15 s the new node has the 10 s before it that one hole lasted; the other two have outlived that one. At
    # 20 s two lengths are known, 10 and 20 s, and at 30 s the node of 15 s has outlived one of three.
    assert told == [
        (3, [77.0]),
        (2, [77.0]),
        (3, [10.0, 77.0]),
        (2, [pytest.approx((10.0 + 20.0) / 2 - 5.0), 77.0]),
        (1, [pytest.approx((20.0 + 30.0) / 2 - 15.0)]),
        (0, []),
    ]
