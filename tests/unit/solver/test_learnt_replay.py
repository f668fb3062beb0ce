"""Replays in which nobody knows the trainers' curves before they are measured."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from oakum_solver.exploration import Exploration
from oakum_solver.logs.holes import HoleLog
from oakum_solver.plan import Plan
from oakum_solver.problem import Curve, PlannedTrainer, Problem
from oakum_solver.replay import engine
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay, replay_both
from oakum_solver.replay.learning import Comparison
from oakum_solver.replay.rate_book import RateBook
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_solver.solve import solve

HOURS = 6.0
CURVES = {"steep": ((1, 10.0), (8, 78.0)), "flat": ((1, 10.0), (2, 12.0), (8, 13.0))}
SETTINGS = ReplaySettings(cost=CostModel.IN_PLACE)


def log_of_holes() -> HoleLog:
    """Eight nodes, each idle except for the last five minutes of every half hour, shifted from node to node."""
    node, turn = np.divmod(np.arange(8 * 12), 12)
    starts = 1800.0 * turn + 120.0 * node
    order = np.argsort(starts, kind="stable")
    names = tuple(f"n{number}" for number in range(8))
    ends = np.minimum(starts + 1500.0, 3600 * HOURS)
    return HoleLog("made.csv", names, node[order].astype(np.int32), starts[order], ends[order], 3600 * HOURS)


def workload() -> Workload:
    trainers = (PlannedTrainer(name, Curve(points), max_nodes=8) for name, points in CURVES.items())
    return Workload(tuple(WorkItem(trainer) for trainer in trainers))


@pytest.fixture(scope="module")
def both() -> ReplayResult:
    return replay_both(log_of_holes(), workload(), SETTINGS)


def test_what_learning_costs_stands_beside_the_replay_with_known_curves(both: ReplayResult) -> None:
    alone = replay(log_of_holes(), workload(), SETTINGS)
    assert (alone.efficiency, alone.samples, alone.rescales) == (both.efficiency, both.samples, both.rescales)
    assert alone.learnt is None
    assert both.learnt is not None
    assert 0.9 * both.efficiency < both.learnt.efficiency <= both.efficiency


def test_plans_are_soon_as_good_as_with_known_curves(both: ReplayResult) -> None:
    assert both.learnt is not None
    assert both.learnt.settled_after_h < HOURS / 2
    assert both.learnt.as_known > 0.8
    assert 0.0 <= both.learnt.explored <= Exploration().share


def test_the_planner_begins_without_curves_and_learns_those_of_the_trainers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Problem] = []

    def listen(problem: Problem, *args: object, **options: object) -> Plan:
        told.append(problem)
        return solve(problem, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "solve", listen)
    replay(log_of_holes(), workload(), dataclasses.replace(SETTINGS, learning=Exploration()))
    first, last = told[0], told[-1]
    assert {trainer.curve for trainer in first.trainers} == {Curve(((8, 8.0),))}
    assert any(trainer.guaranteed for trainer in first.trainers)
    for trainer in last.trainers:
        true = Curve(CURVES[trainer.id])
        sizes = range(1, 9)
        assert [trainer.curve.rate(n) for n in sizes] == pytest.approx([true.rate(n) for n in sizes], rel=0.25)
    assert not any(trainer.guaranteed for trainer in last.trainers)


def test_a_book_measures_in_windows_and_says_when_the_next_thing_is_known() -> None:
    book = RateBook(1, 8, Exploration())
    assert book.learner.curve is None
    assert book.missing_s(2) == 5.0
    book.take(2, 3.0, 20.0)
    assert (book.rates, book.missing_s(2)) == ({}, 2.0)
    book.take(2, 2.0, 20.0)
    assert (book.rates[2].seconds, book.rates[2].samples, book.missing_s(2)) == (5.0, 100.0, 15.0)
    assert book.learner.curve is not None
    assert book.learner.curve.rate(2) == pytest.approx(20.0)
    book.take(2, 15.0, 20.0)
    assert book.missing_s(2) == math.inf
    book.take(2, 4.0, 20.0)
    assert book.rates[2].seconds == 20.0


def test_plans_have_settled_when_they_are_as_good_for_an_hour() -> None:
    comparison = Comparison(
        time_s=[0.0, 600.0, 1200.0, 4000.0, 8000.0], worth=[0.0, 10.0, 9.0, 10.0, 9.95], best=[10.0] * 5
    )
    assert comparison.settled_after_s(20_000.0) == 4000.0
    assert comparison.share_as_known(20_000.0) == pytest.approx((600.0 + 16_000.0) / 20_000.0)
    assert Comparison(time_s=[0.0], worth=[9.0], best=[10.0]).settled_after_s(20_000.0) == math.inf
    assert Comparison().settled_after_s(100.0) == math.inf
