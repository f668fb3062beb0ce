"""Idle logs drawn from a model have the size and shape asked for."""

from itertools import pairwise

import numpy as np
import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.logs.holes import HoleLog, count_changes
from oakum_solver.logs.synthetic import random_hole_log

DAYS = 5.0


@pytest.fixture(scope="module")
def log() -> HoleLog:
    return random_hole_log(num_nodes=4700, days=DAYS, events_per_day=1600, idle_share=0.1, seed=1)


def test_events_and_idle_share_are_about_those_asked_for(log: HoleLog) -> None:
    assert count_changes(log) == pytest.approx(DAYS * 1600, rel=0.05)
    assert log.idle_node_s / (4700 * DAYS * 86400) == pytest.approx(0.1, rel=0.1)
    assert (log.duration_s, len(log.nodes), log.cut_s) == (DAYS * 86400, 4700, 0.0)


def test_of_two_nodes_that_became_idle_together_four_fifths_leave_together(log: HoleLog) -> None:
    starts, first = np.unique(log.start_s, return_index=True)
    together = pairs = 0.0
    for begin, end in pairwise(first[starts > 0].tolist()):
        ends_s = log.end_s[begin:end]
        same = np.unique(ends_s, return_counts=True)[1]
        together += (same * (same - 1)).sum()
        pairs += len(ends_s) * (len(ends_s) - 1)
    assert together / pairs == pytest.approx(0.8, abs=0.02)


def test_holes_are_in_order_within_the_log_and_apart_on_a_node(log: HoleLog) -> None:
    assert (np.diff(log.start_s) >= 0).all()
    assert (log.start_s < log.end_s).all()
    assert (log.start_s.min(), log.end_s.max()) == (0.0, log.duration_s)
    order = np.lexsort((log.start_s, log.node))
    next_on_node = log.node[order][1:] == log.node[order][:-1]
    assert (log.start_s[order][1:] > log.end_s[order][:-1])[next_on_node].all()


def test_the_longer_a_hole_has_lasted_the_longer_it_lasts(log: HoleLog) -> None:
    length_s = log.end_s - log.start_s
    residual_s = [(length_s[length_s > age_s] - age_s).mean() for age_s in (60.0, 600.0, 3600.0)]
    assert residual_s == sorted(residual_s)


def test_a_seed_draws_one_log() -> None:
    one, same, other = (random_hole_log(50, 1.0, 200, 0.2, seed) for seed in (1, 1, 2))
    assert (one.start_s.tolist(), one.node.tolist()) == (same.start_s.tolist(), same.node.tolist())
    assert one.start_s.tolist() != other.start_s.tolist()


@pytest.mark.parametrize(("events_per_day", "idle_share"), [(20_000, 0.1), (40, 0.5)])
def test_lengths_give_way_where_batches_cannot(events_per_day: float, idle_share: float) -> None:
    log = random_hole_log(200, 20 if events_per_day < 100 else 1, events_per_day, idle_share, seed=1)
    assert count_changes(log) == pytest.approx(events_per_day * log.duration_s / 86400, rel=0.1)
    assert log.idle_node_s / (200 * log.duration_s) == pytest.approx(idle_share, rel=0.2)


@each(
    "arguments",
    [(0, 1, 1, 0.1), (1, 0, 1, 0.1), (1, 1, 0, 0.1), (1, 1, 1, 0), (1, 1, 1, 1), (1, float("nan"), 1, 0.1)],
)
def test_arguments_that_make_no_log_are_refused(arguments: tuple[int, float, float, float]) -> None:
    with pytest.raises(ProblemError, match="expected at least one node"):
        random_hole_log(*arguments, seed=1)
