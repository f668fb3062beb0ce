"""Closed forms of the advisor against plain search."""

from __future__ import annotations

import random
from fractions import Fraction
from itertools import count

import pytest

from cells import each
from oakum_solver.advice.exchange import Link, num_servers, ring_s, torus_s
from oakum_solver.advice.scaling import (
    StepCosts,
    efficiency_by_ratio,
    limit_by_ratio,
    limit_by_share,
    speedup_by_share,
)
from oakum_solver.errors import ProblemError

INSTANCES = 10_000


def _searched_nodes(compute: Fraction, overhead: Fraction, asked: Fraction) -> int:
    """Goes from one number of nodes to the next while the step times themselves give the efficiency."""
    unit = compute.denominator * overhead.denominator * asked.denominator
    whole_compute, whole_overhead, whole_asked = int(compute * unit), int(overhead * unit), int(asked * unit)
    for nodes in count(1):
        # The step times n + 1 nodes beside one: (C + O) / (C / (n + 1) + O) < a (n + 1), in whole numbers.
        if (whole_compute + whole_overhead) * unit < whole_asked * (whole_compute + (nodes + 1) * whole_overhead):
            return nodes
    raise AssertionError


def test_the_largest_number_of_nodes_is_the_one_that_a_search_finds() -> None:
    draw, on_boundary = random.Random(1), 0
    for _ in range(INSTANCES):
        compute, overhead = Fraction(draw.randint(1, 400), 100), Fraction(draw.randint(10, 400), 100)
        asked = Fraction(draw.randint(50, 100), 100)
        if draw.random() < 0.3:  # the compute for which exactly n nodes have the efficiency
            nodes = draw.randint(2, 30)
            scaled = overhead * (asked * nodes - 1) / (1 - asked) if asked < 1 else compute
            compute = scaled if scaled > 0 and (scaled * 10**6).denominator == 1 else compute
        costs = StepCosts(float(compute), float(overhead))
        expected = _searched_nodes(Fraction(repr(float(compute))), overhead, asked)
        share = overhead / (compute + overhead)
        on_boundary += (1 + (1 - asked) / (asked * share)).denominator == 1
        assert costs.most_nodes(float(asked)) == expected, (compute, overhead, asked)
    assert on_boundary > 500


def test_both_ways_of_writing_the_overhead_give_one_speedup() -> None:
    draw = random.Random(2)
    for _ in range(INSTANCES):
        costs = StepCosts(draw.uniform(1e-4, 10), draw.choice((0.0, draw.uniform(0, 5))))
        nodes = draw.randint(1, 4096)
        expected = (costs.compute_s + costs.overhead_s) / costs.step_s(nodes)
        assert speedup_by_share(nodes, costs.share) == pytest.approx(expected, rel=1e-9)
        assert nodes * efficiency_by_ratio(nodes, costs.ratio) == pytest.approx(expected, rel=1e-9)
        assert costs.speedup(nodes) == pytest.approx(nodes * costs.efficiency(nodes), rel=1e-9)


def test_a_bare_ten_percent_means_two_limits() -> None:
    assert limit_by_share(0.1, 0.8) == 3.5
    assert limit_by_ratio(0.1, 0.8) == 3.75


def test_without_overhead_any_number_of_nodes_is_efficient() -> None:
    assert StepCosts(1.0, 0.0).most_nodes(1.0) is None
    assert limit_by_share(0.0, 0.5) is None
    assert limit_by_ratio(0.0, 0.5) is None


def test_full_efficiency_with_overhead_takes_one_node() -> None:
    assert StepCosts(1.0, 0.25).most_nodes(1.0) == 1


def test_the_number_of_servers_is_the_one_that_a_search_finds() -> None:
    draw, on_boundary = random.Random(3), 0
    for _ in range(INSTANCES):
        gradient_bytes, workers = draw.randint(0, 100), draw.randint(1, 6)
        bandwidth, compute = draw.randint(1, 20), Fraction(draw.randint(5, 50), 10)
        traffic = 2 * gradient_bytes * workers
        expected = next(n for n in count(1) if 10 * traffic <= n * bandwidth * int(10 * compute))
        on_boundary += traffic == expected * bandwidth * compute
        assert num_servers(gradient_bytes, workers, float(bandwidth), float(compute)) == expected
    assert on_boundary > 100


def _walked_ring_s(gradient_bytes: Fraction, nodes: int, link: Link) -> float:
    """Adds up the messages of a ring, reduce-scatter and all-gather."""
    return sum(
        link.latency_s + float(gradient_bytes / nodes) / link.bandwidth_bytes_per_s
        for _ in ("reduce-scatter", "all-gather")
        for _ in range(nodes - 1)
    )


def test_rings_and_tori_take_as_long_as_their_messages() -> None:
    draw = random.Random(4)
    for _ in range(INSTANCES):
        link = Link(draw.choice((0.0, 1e-4)), draw.uniform(1e6, 1e10))
        row, column = draw.randint(1, 5), draw.randint(1, 5)
        nbytes = row * draw.randint(0, 10**7)
        assert ring_s(nbytes, row, link) == pytest.approx(_walked_ring_s(Fraction(nbytes), row, link), rel=1e-9)
        walked = _walked_ring_s(Fraction(nbytes), row, link) + _walked_ring_s(Fraction(nbytes, row), column, link)
        assert torus_s(nbytes, row, column, link) == pytest.approx(walked, rel=1e-9)


def test_a_torus_sends_as_many_bytes_as_a_ring_in_fewer_messages() -> None:
    without_latency, with_latency = Link(0.0, 1e9), Link(1e-4, 1e9)
    assert torus_s(1_200_000, 3, 4, without_latency) == pytest.approx(ring_s(1_200_000, 12, without_latency))
    assert torus_s(1_200_000, 3, 4, with_latency) < ring_s(1_200_000, 12, with_latency)


@each(
    "ask",
    [
        lambda: StepCosts(0.0, 1.0),
        lambda: StepCosts(1.0, float("nan")),
        lambda: StepCosts(1.0, 1.0).most_nodes(0.0),
        lambda: StepCosts(1.0, 1.0).most_nodes(1.1),
        lambda: Link(-1.0, 1.0),
        lambda: Link(0.0, 0.0),
        lambda: num_servers(1, 0, 1.0, 1.0),
        lambda: num_servers(1, 1, 1.0, 0.0),
    ],
)
def test_numbers_that_are_none_are_refused(ask) -> None:
    with pytest.raises(ProblemError):
        ask()
