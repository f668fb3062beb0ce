"""Curves learnt from measured rates: what the measurements say, and what they cannot say."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from cells import each
from oakum_solver.curves import FittedCurve, Sample, fit_curve, isotonic, linear_curve, newcomer_curve
from oakum_solver.errors import ProblemError
from oakum_solver.problem import Curve
from oakum_solver.step_time import StepTime, fit_step_time

Rate = Callable[[int], float]


def scaling(compute: float, constant: float, communication: float, batch: float = 128.0) -> Rate:
    """Samples/s at n nodes, where a step takes compute / n + constant + communication * log2(n) seconds."""
    return lambda nodes: batch / (compute / nodes + constant + communication * math.log2(nodes))


SATURATING = scaling(1.0, 0.2, 0.05)
NEARLY_LINEAR = scaling(1.0, 0.002, 0.0005)


def measure(rate: Rate, *sizes: int, noise: float = 0.0, windows: int = 8, seconds: float = 5.0) -> list[Sample]:
    chance = random.Random(1)
    return [
        Sample(nodes, rate(nodes) * max(0.01, chance.gauss(1.0, noise)), seconds)
        for nodes in sizes
        for _ in range(windows)
    ]


def test_the_step_time_model_is_found_again_where_there_is_no_noise() -> None:
    nodes = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    true = StepTime(0.5, 0.02, 0.01)
    found = fit_step_time(nodes, true.rates(nodes), np.full(5, 10.0))
    assert (found.compute, found.constant, found.communication) == pytest.approx((0.5, 0.02, 0.01), rel=1e-4)


def test_a_model_without_communication_gets_none_and_not_less() -> None:
    nodes = np.array([1.0, 2.0, 4.0, 8.0])
    rates = np.array([1.0, 2.0, 4.0, 8.8])  # better than linear
    found = fit_step_time(nodes, rates, np.ones(4))
    assert found.compute == pytest.approx(1.0, rel=0.05)
    assert (found.constant, found.communication) == (0.0, 0.0)


@pytest.mark.parametrize("rate", [SATURATING, NEARLY_LINEAR])
def test_noisy_samples_give_the_curve_they_came_from(rate: Rate) -> None:
    fitted = fit_curve(measure(rate, 1, 2, 4, 8, 16, noise=0.03), None, 64)
    for nodes in range(1, 17):
        assert fitted.curve.rate(nodes) == pytest.approx(rate(nodes), rel=0.05)
        assert abs(fitted.curve.rate(nodes) - rate(nodes)) <= 3 * fitted.std(nodes)
    assert fitted.curve.rate(32) == pytest.approx(rate(32), rel=0.2)
    assert fitted.measured == {1, 2, 4, 8, 16}
    assert fitted.scatter == pytest.approx(0.03, rel=0.5)


def test_sizes_that_would_be_slower_are_as_fast_as_the_best() -> None:
    """Nobody has to use every node: the curve that a plan reads never falls."""
    peak = scaling(1.0, 0.0, 0.2)
    fitted = fit_curve(measure(peak, 1, 2, 3, 4), None, 32)
    assert fitted.curve.rate(32) == fitted.curve.rate(8) == pytest.approx(peak(3), rel=0.08)


def test_measurements_that_contradict_each_other_are_pooled_by_their_seconds() -> None:
    assert isotonic(np.array([1.0, 4.0, 2.0, 2.0, 5.0]), np.array([1.0, 1.0, 1.0, 2.0, 1.0])).tolist() == [
        1.0,
        *[(4.0 + 2.0 + 2.0 * 2.0) / 4.0] * 3,
        5.0,
    ]
    samples = [Sample(2, 100.0, 300.0), Sample(4, 220.0, 300.0), Sample(6, 180.0, 300.0)]
    curve = fit_curve(samples, None, 6).curve
    assert curve.rate(4) == pytest.approx(200.0, rel=0.05)
    assert curve.rate(6) == pytest.approx(200.0, rel=0.05)


def test_long_measurements_rule_where_the_model_does_not_fit() -> None:
    """A curve with a step in it, as when a node more leaves the fast part of the network."""
    samples = measure(lambda nodes: 100.0 * nodes if nodes <= 4 else 450.0, 2, 4, 5, 8, seconds=60.0)
    curve = fit_curve(samples, None, 8).curve
    assert [curve.rate(nodes) for nodes in (2, 4, 5, 8)] == pytest.approx([200.0, 400.0, 450.0, 450.0], rel=0.02)


def test_a_short_measurement_counts_less_than_the_model_of_long_ones() -> None:
    samples = [*measure(NEARLY_LINEAR, 1, 2, 4, seconds=60.0), Sample(8, 2.0 * NEARLY_LINEAR(8), 0.5)]
    assert fit_curve(samples, None, 8).curve.rate(8) == pytest.approx(NEARLY_LINEAR(8), rel=0.15)


@each("unit", [1e-6, 1.0, 1e6])
def test_a_users_curve_in_another_unit_is_as_good_as_in_ours(unit: float) -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    prior = Curve(tuple((nodes, unit * max(SATURATING(n) for n in sizes if n <= nodes)) for nodes in sizes))
    fitted = fit_curve(measure(SATURATING, 4), prior, 64)
    for nodes in (1, 2, 8, 16):
        assert fitted.curve.rate(nodes) == pytest.approx(SATURATING(nodes), rel=0.05)


def test_a_users_curve_of_a_wrong_shape_is_outweighed() -> None:
    linear = Curve(tuple((nodes, 7.0 * nodes) for nodes in (1, 2, 4, 8, 16, 32, 64)))
    fitted = fit_curve(measure(SATURATING, 2, 4, 8, noise=0.02), linear, 64)
    for nodes in (2, 4, 8):
        assert fitted.curve.rate(nodes) == pytest.approx(SATURATING(nodes), rel=0.04)
    assert fitted.curve.rate(16) < 1.3 * SATURATING(16)


def test_a_users_curve_of_nothing_but_zeros_says_nothing() -> None:
    assert fit_curve([], Curve(((1, 0.0), (4, 0.0))), 8).curve == linear_curve(8)
    assert fit_curve([Sample(2, 50.0, 60.0)], Curve(((4, 0.0),)), 4).curve.rate(4) == pytest.approx(100.0)


def test_without_measurements_the_users_curve_is_the_answer_and_no_curve_is_linear() -> None:
    prior = Curve(((1, 10.0), (4, 30.0)))
    assert fit_curve([], prior, 8) == FittedCurve(prior)
    assert fit_curve([], None, 8) == FittedCurve(linear_curve(8))
    assert FittedCurve(prior).std(4) == 15.0


def test_one_wildly_slow_window_changes_nothing() -> None:
    clean = measure(SATURATING, 1, 2, 4, 8)
    disturbed = [*clean, Sample(4, SATURATING(4) / 50.0, 5.0)]
    for nodes in (1, 2, 4, 8):
        expected = fit_curve(clean, None, 8).curve.rate(nodes)
        assert fit_curve(disturbed, None, 8).curve.rate(nodes) == pytest.approx(expected, rel=0.01)


def test_one_wildly_slow_size_hardly_changes_the_others() -> None:
    samples = [*measure(NEARLY_LINEAR, 1, 2, 4, 8, 16), Sample(12, NEARLY_LINEAR(12) / 10.0, 5.0)]
    curve = fit_curve(samples, None, 16).curve
    for nodes in (1, 2, 4, 8, 16):
        assert curve.rate(nodes) == pytest.approx(NEARLY_LINEAR(nodes), rel=0.1)


def test_uncertainty_falls_with_seconds_and_grows_with_distance() -> None:
    """The formula: scatter, here its least, as far as 4 nodes are in doubt, and a tenth for each doubling."""
    fitted = fit_curve([Sample(4, 100.0, 30.0)], None, 64)
    at_4, doubled, halved = fitted.std(4), fitted.std(8), fitted.std(2)
    assert at_4 == pytest.approx(100.0 * 0.02 * math.sqrt(10.0 / (10.0 + 30.0)))
    assert doubled == pytest.approx(200.0 * math.hypot(0.01, 0.1))
    assert halved == pytest.approx(50.0 * math.hypot(0.01, 0.1))
    assert fit_curve([Sample(4, 100.0, 600.0)], None, 64).std(4) < at_4
    assert (fitted.low(8), fitted.high(8)) == pytest.approx((200.0 - 2 * doubled, 200.0 + 2 * doubled))


@each(
    ("nodes", "rate", "seconds"),
    [(0, 1.0, 1.0), (1, 0.0, 1.0), (1, -1.0, 1.0), (1, math.nan, 1.0), (1, math.inf, 1.0), (1, 1.0, 0.0)],
)
def test_a_sample_that_measured_nothing_is_refused(nodes: int, rate: float, seconds: float) -> None:
    with pytest.raises(ProblemError, match="expected at least one node"):
        Sample(nodes, rate, seconds)


def test_a_newcomer_promises_its_minimum_and_leaves_the_rest_to_others() -> None:
    curve = newcomer_curve(2, 10, 50.0)
    assert [curve.rate(nodes) for nodes in (1, 2, 3, 10)] == [50.0, 100.0, 101.0, 108.0]
    assert newcomer_curve(3, 3, 50.0) == Curve(((3, 150.0),))


def test_a_curve_of_a_thousand_nodes_has_few_points() -> None:
    curve = fit_curve(measure(NEARLY_LINEAR, 3, 700), None, 1000).curve
    assert len(curve.points) < 80
    assert {3, 700, 1000} <= {nodes for nodes, _ in curve.points}
