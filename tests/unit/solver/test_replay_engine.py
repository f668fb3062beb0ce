"""Replays of a few holes on a few nodes, every number worked out by hand.

Node-time is in node-seconds here. On one node each trainer makes 10 samples/s unless said otherwise, so that 10
samples are worth 1 of the objective `speedup`.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.guard import StarvationGuard
from oakum_solver.logs.holes import HoleLog
from oakum_solver.objectives import NamedObjective
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.accounts import sample_worth
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload

Hole = tuple[str, float, float]
LINEAR = (10.0, 20.0, 30.0)
CONCAVE = (10.0, 18.0, 24.0)
FLAT = (10.0, 12.0)


def hole_log(*holes: Hole, duration_s: float = 100.0) -> HoleLog:
    holes = tuple(sorted(holes, key=lambda hole: hole[1]))
    nodes = tuple(sorted({name for name, _, _ in holes} or {"a"}))
    return HoleLog(
        name="log.csv",
        nodes=nodes,
        node=np.array([nodes.index(name) for name, _, _ in holes], dtype=np.int32),
        start_s=np.array([start_s for _, start_s, _ in holes], dtype=np.float64),
        end_s=np.array([end_s for _, _, end_s in holes], dtype=np.float64),
        duration_s=duration_s,
    )


def item(
    id_: str, rates: tuple[float, ...], submit_s: float = 0.0, samples: float | None = None, **settings: Any
) -> WorkItem:
    """A trainer with these rates at 1, 2, ... nodes, stalls of 10 s (grow) and 5 s (shrink)."""
    curve = Curve(tuple(enumerate(rates, start=1)))
    default = {"max_nodes": len(rates), "grow_stall_s": 10.0, "shrink_stall_s": 5.0, "startup_s": 0.0}
    return WorkItem(PlannedTrainer(id_, curve, **(default | settings)), submit_s, samples)


def replayed(log: HoleLog, *items: WorkItem, **settings: Any) -> ReplayResult:
    return replay(log, Workload(items), ReplaySettings(**settings))


def node_seconds(result: ReplayResult) -> dict[str, float]:
    """All node-time of the log, by what became of it, what is 0 left out."""
    shares = dataclasses.asdict(result.losses) | {"productive": result.productive_node_hours}
    return {name: pytest.approx(hours * 3600) for name, hours in shares.items() if hours > 1e-12}


def samples(result: ReplayResult) -> list[float]:
    return [trainer.samples for trainer in result.trainers]


def table(result: ReplayResult) -> list[tuple[float, int, int, int]]:
    """(time_s, idle, used, running) of each step."""
    steps = result.steps
    return list(
        zip(
            steps.time_s.tolist(), steps.idle_nodes.tolist(), steps.used_nodes.tolist(),
            steps.running_trainers.tolist(), strict=True,
        )
    )  # fmt: skip


TWO_HOLES = hole_log(("a", 0, 100), ("b", 0, 50))
GROWING = hole_log(("a", 0, 100), ("b", 50, 100))


def test_free_rescales_reach_the_bound() -> None:
    result = replayed(TWO_HOLES, item("x", CONCAVE), cost=CostModel.NONE)
    assert samples(result) == pytest.approx([18.0 * 50 + 10.0 * 50])
    assert node_seconds(result) == {"productive": 150.0}
    assert (result.equivalent_nodes, result.idle_node_hours * 3600) == (1.5, 150.0)
    assert (result.achieved, result.achievable) == pytest.approx((140.0, 100 * (1.0 + 1.8) / 2))
    assert (result.efficiency, result.zero_cost_bound) == pytest.approx((1.0, 1.0))
    assert table(result) == [(0.0, 2, 2, 1), (50.0, 1, 1, 1), (100.0, 0, 0, 0)]
    assert result.steps.rate.tolist() == pytest.approx([1.8, 1.0, 0.0])


def test_the_paper_charges_stalls_of_all_nodes() -> None:
    result = replayed(TWO_HOLES, item("x", CONCAVE), cost=CostModel.PAPER)
    assert samples(result) == pytest.approx([18.0 * 40 + 10.0 * 45])
    assert node_seconds(result) == {"grow": 20.0, "preemption": 5.0, "productive": 125.0}
    assert (result.efficiency, result.zero_cost_bound) == pytest.approx((117 / 140, 1.0))
    assert (result.events, result.rescales) == (3, 3)
    (trainer,) = result.trainers
    assert (trainer.start_s, trainer.end_s, trainer.node_hours * 3600) == (0.0, None, pytest.approx(150.0))
    assert trainer.sizes == ((0.0, 2), (50.0, 1), (100.0, 0))


def test_in_place_charges_the_start_of_each_node_and_a_regroup() -> None:
    result = replayed(TWO_HOLES, item("x", CONCAVE), cost=CostModel.IN_PLACE)
    assert samples(result) == pytest.approx([18.0 * 29 + 10.0 * 49])
    assert node_seconds(result) == {"startup": 40.0, "grow": 2.0, "preemption": 1.0, "productive": 107.0}


def test_the_paper_stops_a_trainer_that_grows() -> None:
    result = replayed(GROWING, item("x", CONCAVE), cost=CostModel.PAPER)
    assert samples(result) == pytest.approx([10.0 * 40 + 18.0 * 40])
    assert node_seconds(result) == {"grow": 10.0 + 20.0, "productive": 40.0 + 80.0}


def test_in_place_a_trainer_runs_on_while_its_new_node_starts() -> None:
    result = replayed(GROWING, item("x", CONCAVE), cost=CostModel.IN_PLACE, stall_s=2.0, startup_s=30.0)
    assert samples(result) == pytest.approx([10.0 * (50 - 32 + 30) + 18.0 * 18])
    assert node_seconds(result) == {"startup": 30.0 + 30.0, "grow": 2.0 + 4.0, "productive": 48.0 + 36.0}


@pytest.mark.parametrize("policy", ["milp", "greedy"])
def test_a_plan_that_takes_nodes_charges_a_shrink_stall(policy: str) -> None:
    log = hole_log(("a", 0, 100), ("b", 0, 100))
    result = replayed(log, item("x", FLAT), item("y", (5.0, 10.0), submit_s=40.0), policy=policy)
    assert samples(result) == pytest.approx([12.0 * 30 + 10.0 * 55, 5.0 * 50])
    assert node_seconds(result) == {"grow": 20.0 + 10.0, "shrink": 5.0, "productive": 60.0 + 55.0 + 50.0}
    assert (result.achieved, result.achievable) == pytest.approx((36 + 55 + 50, 1.2 * 40 + 2.0 * 60))
    assert (result.zero_cost_bound, result.events) == (pytest.approx(1.0), 3)
    assert table(result) == [(0.0, 2, 2, 1), (40.0, 2, 2, 2), (100.0, 0, 0, 0)]


def test_a_finite_trainer_ends_with_its_last_sample() -> None:
    result = replayed(hole_log(("a", 0, 100)), item("x", LINEAR, samples=500.0))
    (trainer,) = result.trainers
    assert (trainer.samples, trainer.start_s, trainer.end_s) == (500.0, 0.0, 60.0)
    assert trainer.sizes == ((0.0, 1), (60.0, 0))
    assert node_seconds(result) == {"grow": 10.0, "productive": 50.0, "unallocated": 40.0}
    assert (result.events, table(result)) == (3, [(0.0, 1, 1, 1), (60.0, 1, 0, 0)])
    assert (result.achieved, result.achievable, result.efficiency) == pytest.approx((50.0, 50.0, 1.0))


@pytest.mark.parametrize("duration_s", [60.0, 100.0])
def test_a_trainer_that_ends_as_its_hole_ends_has_ended(duration_s: float) -> None:
    """It used to lose its nodes first, and then waited for some to train nothing more."""
    log = hole_log(("a", 0, 60), duration_s=duration_s)
    (trainer,) = replayed(log, item("x", LINEAR, samples=500.0)).trainers
    assert (trainer.samples, trainer.end_s, trainer.rescales) == (500.0, 60.0, 1)


def test_a_trainer_may_end_while_nodes_still_start_for_it() -> None:
    """The log went on for ever after that."""
    log = hole_log(("a", 0, 200), ("b", 50, 200), duration_s=200.0)
    mine = item("x", LINEAR, samples=10.0 * 39)
    result = replayed(log, mine, cost=CostModel.IN_PLACE, policy="equal-share")
    (trainer,) = result.trainers
    assert (trainer.end_s, trainer.samples) == (60.0, 390.0)
    assert node_seconds(result) == {
        "startup": 20.0 + 10.0, "grow": 1.0, "productive": 39.0, "unallocated": 200.0 + 150.0 - 70.0
    }  # fmt: skip


def test_arrivals_and_ends_are_events() -> None:
    log = hole_log(("a", 0, 100))
    result = replayed(
        log, item("x", LINEAR, 20.0, 300.0), item("y", LINEAR, 70.0, 100.0), item("z", LINEAR, 500.0)
    )
    assert [(t.name, t.start_s, t.end_s) for t in result.trainers] == [
        ("x", 20.0, 60.0), ("y", 70.0, 90.0), ("z", None, None)
    ]  # fmt: skip
    # At 0 s nobody is there; then 20, 60, 70 and 90 s, and the log's end.
    assert (result.events, [row[0] for row in table(result)]) == (6, [20.0, 60.0, 70.0, 90.0])
    assert result.trainers[2].sizes == ((500.0, 0),)


def test_at_most_max_trainers_run_or_wait_first_come_first_served() -> None:
    log = hole_log(("a", 0, 200), ("b", 0, 200), duration_s=200.0)
    work = (
        item("late", LINEAR, 30.0, 2000.0, weight=9.0),
        item("first", LINEAR, 0.0, 800.0),
        item("second", LINEAR, 0.0, 800.0),
    )
    result = replayed(log, *work, max_trainers=1)
    ends = {trainer.name: (trainer.start_s, trainer.end_s) for trainer in result.trainers}
    assert ends == {"first": (0.0, 50.0), "second": (50.0, 100.0), "late": (100.0, None)}
    assert result.steps.running_trainers.tolist() == [1, 1, 1, 0]
    # Free of stalls each of the first two takes 40 s, and the third its 100 s from then on.
    assert result.achievable == pytest.approx(80 + 80 + 9 * 200)


def test_a_hole_that_follows_another_at_once_is_an_eviction() -> None:
    result = replayed(hole_log(("a", 0, 50), ("a", 50, 100)), item("x", LINEAR))
    assert samples(result) == pytest.approx([10.0 * 40 + 10.0 * 40])
    assert node_seconds(result) == {"grow": 20.0, "productive": 80.0}
    assert (result.rescales, result.events) == (4, 3)
    assert result.trainers[0].sizes == ((0.0, 1), (50.0, 1), (100.0, 0))


def test_several_nodes_taken_at_once_cost_one_stall() -> None:
    log = hole_log(("a", 0, 100), ("b", 0, 50), ("c", 0, 50))
    result = replayed(log, item("x", LINEAR))
    assert node_seconds(result) == {"grow": 30.0, "preemption": 5.0, "productive": 120.0 + 45.0}


def test_a_trainer_below_its_minimum_gives_up_what_is_left() -> None:
    result = replayed(TWO_HOLES, item("x", LINEAR, min_nodes=2))
    assert samples(result) == pytest.approx([20.0 * 40])
    assert node_seconds(result) == {"grow": 20.0, "productive": 80.0, "unallocated": 50.0}
    assert table(result) == [(0.0, 2, 2, 1), (50.0, 1, 0, 0), (100.0, 0, 0, 0)]


def test_nodes_that_are_not_worth_a_rescale_stay_idle() -> None:
    log = hole_log(("a", 0, 100), ("b", 50, 100))
    assert table(replayed(log, item("x", FLAT), look_ahead_s=30.0))[1] == (50.0, 2, 1, 1)
    assert table(replayed(log, item("x", FLAT), look_ahead_s=100.0))[1] == (50.0, 2, 2, 1)


@each("policy", ["milp", "greedy", "equal-share"])
def test_a_user_has_no_more_nodes_than_the_cap(policy: str) -> None:
    log = hole_log(("a", 0, 100), ("b", 0, 100), ("c", 0, 100))
    mine = (item("x", LINEAR, user="ada"), item("y", LINEAR, user="ada"))
    result = replayed(log, *mine, policy=policy, user_cap=2, cost=CostModel.NONE)
    assert node_seconds(result) == {"productive": 200.0, "unallocated": 100.0}
    with_bob = replayed(log, *mine, item("z", (1.0,), user="bob"), policy=policy, user_cap=2, cost=CostModel.NONE)
    assert samples(with_bob)[2] == pytest.approx(100.0)
    assert node_seconds(with_bob) == {"productive": 300.0}
    nobody = replayed(log, item("x", LINEAR), policy=policy, user_cap=2, cost=CostModel.NONE)
    assert node_seconds(nobody) == {"productive": 300.0}


@pytest.mark.parametrize("policy", ["milp", "greedy"])
def test_the_guard_ends_a_wait(policy: str) -> None:
    log = hole_log(("a", 0, 100))
    mine = (item("x", (10.0,), weight=3.0), item("y", (10.0,)))
    result = replayed(
        log, *mine, policy=policy, cost=CostModel.NONE, guard=StarvationGuard(wait_s=30.0, quantum_s=20.0)
    )
    # y waits for 30 s, has the node for 20 s, and again; nothing else happens on this log.
    assert [trainer.sizes for trainer in result.trainers] == [
        ((0.0, 1), (30.0, 0), (50.0, 1), (80.0, 0)),
        ((0.0, 0), (30.0, 1), (50.0, 0), (80.0, 1), (100.0, 0)),
    ]
    assert samples(result) == pytest.approx([600.0, 400.0])
    assert result.events == 5
    unguarded = replayed(log, *mine, policy=policy, cost=CostModel.NONE)
    assert samples(unguarded) == pytest.approx([1000.0, 0.0])


def test_equal_shares_look_at_no_curve() -> None:
    log = hole_log(("a", 0, 100), ("b", 0, 100), ("c", 0, 100))
    mine = (item("x", (10.0, 11.0, 12.0)), item("y", LINEAR))
    shared = replayed(log, *mine, policy="equal-share", cost=CostModel.NONE)
    assert samples(shared) == pytest.approx([1100.0, 1000.0])
    assert samples(replayed(log, *mine, cost=CostModel.NONE)) == pytest.approx([1000.0, 2000.0])
    assert shared.efficiency == pytest.approx(2.1 / 3.0)
    assert set(shared.steps.solver) == {"equal-share"}


def test_a_priority_comes_before_any_gain() -> None:
    log = hole_log(("a", 0, 100), ("b", 0, 100))
    result = replayed(log, item("x", LINEAR), item("y", FLAT, priority=1), cost=CostModel.NONE)
    assert samples(result) == pytest.approx([0.0, 1200.0])


def test_no_trainer_has_nodes_at_the_end_of_the_log() -> None:
    log = hole_log(("a", 0, 40), ("b", 10, 100), ("c", 20, 90))
    result = replayed(log, item("x", CONCAVE), item("y", LINEAR, 50.0, samples=1e6), cost=CostModel.IN_PLACE)
    assert [trainer.sizes[-1][1] for trainer in result.trainers] == [0, 0]
    assert table(result)[-1] == (100.0, 0, 0, 0)
    assert result.used_node_hours * 3600 == pytest.approx(40 + 90 + 70)


def test_a_log_without_holes_trains_nothing() -> None:
    result = replayed(hole_log(), item("x", LINEAR))
    assert (result.samples, result.achievable) == (0.0, 0.0)
    assert math.isnan(result.efficiency)
    assert math.isnan(result.zero_cost_bound)
    assert (node_seconds(result), result.trainers[0].start_s) == ({}, None)


def test_a_trainer_that_makes_nothing_gets_nothing_for_any_objective() -> None:
    for objective in NamedObjective:
        result = replayed(hole_log(("a", 0, 100)), item("x", (0.0, 0.0)), objective=objective)
        assert node_seconds(result) == {"unallocated": 100.0}


def test_the_worth_of_a_sample_is_the_objectives() -> None:
    trainer = item("x", (0.0, 8.0, 20.0), weight=3.0).trainer
    worths = {str(objective): sample_worth(objective, trainer) for objective in NamedObjective}
    assert worths == pytest.approx(
        {"throughput": 3.0, "weighted": 3.0 / 20, "speedup": 3.0 / 4, "fair-share": 3.0 / 4, "deadline": 3.0 / 4}
    )


def test_progress_tells_the_part_of_the_log_that_is_done() -> None:
    told: list[tuple[float, int, int]] = []
    replay(TWO_HOLES, Workload((item("x", LINEAR),)), ReplaySettings(), lambda *done: told.append(done))
    assert told == [(0.0, 1, 3), (0.5, 2, 3), (1.0, 3, 3), (1.0, 3, 3)]


@each("settings", [{"max_trainers": 0}, {"look_ahead_s": 0.0}, {"look_ahead_s": math.nan}])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ProblemError, match=f"{next(iter(settings))} is "):
        ReplaySettings(**settings)


@each("costs", [{"stall_s": math.nan}, {"startup_s": -1.0}, {"stall_s": math.inf}])
def test_costs_that_make_no_sense_are_refused(costs: dict[str, float]) -> None:
    with pytest.raises(ProblemError, match="expected a finite number >= 0"):
        replayed(TWO_HOLES, item("x", LINEAR), cost=CostModel.IN_PLACE, **costs)


def test_nodes_by_number_are_the_lowest_ones_for_the_first_trainers() -> None:
    """x loses a, which jobs take first, and goes on on c; y stays on b. The learnt choice begins with c and b."""
    log = hole_log(("a", 0, 50), ("b", 0, 100), ("c", 0, 100))
    x, y = item("x", (10.0,)), item("y", (10.0,))
    sizes = {number: replayed(log, x, y, nodes_by_number=number).trainers for number in (True, False)}
    assert [trainer.sizes for trainer in sizes[True]] == [
        ((0.0, 1), (50.0, 1), (100.0, 0)),
        ((0.0, 1), (100.0, 0)),
    ]
    assert [trainer.sizes for trainer in sizes[False]] == [((0.0, 1), (100.0, 0))] * 2


def test_nodes_by_number_and_groups_exclude_each_other() -> None:
    with pytest.raises(ProblemError, match="nodes of several groups differ"):
        ReplaySettings(nodes_by_number=True, groups=True)
