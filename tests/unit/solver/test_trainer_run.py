"""One trainer on its way through a log, worked out by hand."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.costs import CostModel, RescaleCosts
from oakum_solver.replay.trainer_run import Cause, TrainerRun
from oakum_solver.replay.workload import WorkItem

RATES = (0.0, 10.0, 18.0, 24.0, 28.0)
"""Samples/s at 0 to 4 nodes."""
NO_LOSS = dict.fromkeys(Cause, 0.0)


def new_run(
    cost: CostModel = CostModel.PAPER, min_nodes: int = 1, samples: float | None = None, **costs: float
) -> TrainerRun:
    """Paper: a grow stall of 18 s and a shrink stall of 12 s. In place: 20 s to start up, 1 s to regroup."""
    curve = Curve(tuple(enumerate(RATES[1:], start=1)))
    trainer = PlannedTrainer("x", curve, min_nodes, 4, grow_stall_s=18.0, shrink_stall_s=12.0, startup_s=0.0)
    rates = tuple(rate if nodes >= min_nodes else 0.0 for nodes, rate in enumerate(RATES))
    return TrainerRun(WorkItem(trainer, 0.0, samples), RescaleCosts(cost, **costs).charged(trainer), rates)


def lost(**node_s: float) -> dict[Cause, float]:
    return NO_LOSS | {Cause(name): amount for name, amount in node_s.items()}


def told(run: TrainerRun) -> tuple[float, float, dict[Cause, float]]:
    return run.samples, run.productive_node_s, run.lost_node_s


def test_starting_from_no_node_costs_a_grow_stall() -> None:
    run = new_run()
    run.give({0, 1})
    run.advance(100.0)
    assert told(run) == (18.0 * 82, 2 * 82, lost(grow=2 * 18))
    assert (run.granted_node_s, run.start_s, run.rescales) == (200.0, 0.0, 1)


def test_a_trainer_that_grows_stops_with_all_of_its_nodes() -> None:
    run = new_run()
    run.give({0, 1})
    run.advance(100.0)
    run.give({2})
    run.advance(120.0)
    assert told(run) == (18.0 * 82 + 24.0 * 2, 2 * 82 + 3 * 2, lost(grow=2 * 18 + 3 * 18))


@pytest.mark.parametrize("cause", [Cause.SHRINK, Cause.PREEMPTION])
def test_a_trainer_that_loses_nodes_stops_once_however_many_they_are(cause: Cause) -> None:
    run = new_run()
    run.give({0, 1, 2})
    run.advance(18.0)
    run.take({0, 2}, cause)
    run.advance(40.0)
    assert told(run) == (10.0 * 10, 10, lost(grow=3 * 18) | {cause: 12.0})


def test_stalls_follow_one_another() -> None:
    run = new_run()
    run.give({0, 1, 2})
    run.advance(10.0)
    run.take({0}, Cause.PREEMPTION)
    run.advance(11.0)
    run.take({1}, Cause.SHRINK)
    run.advance(50.0)
    # Three nodes for 10 s, two for 1 s, one for 7 s; then 12 s on one node for each of the two that left.
    assert told(run) == (10.0 * 8, 8, lost(grow=30 + 2 + 7, preemption=12, shrink=12))


def test_who_loses_all_nodes_has_nothing_to_stall_and_starts_anew() -> None:
    run = new_run()
    run.give({0, 1})
    run.advance(10.0)
    run.take({0, 1}, Cause.PREEMPTION)
    run.advance(15.0)
    assert (run.waiting_since_s, run.granted_node_s) == (10.0, 20.0)
    run.give({3})
    run.advance(40.0)
    assert told(run) == (10.0 * 7, 7, lost(grow=2 * 10 + 18))
    assert run.sizes == [(0.0, 2), (10.0, 0), (15.0, 1)]


def test_in_place_the_first_nodes_start_up_and_then_regroup() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0, 1})
    run.advance(31.0)
    assert told(run) == (18.0 * 10, 2 * 10, lost(startup=2 * 20, grow=2 * 1))


def test_in_place_a_trainer_runs_on_until_all_that_joined_together_are_ready() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0})
    run.advance(21.0)
    run.give({1, 2})
    run.advance(41.0)
    assert told(run) == (10.0 * 20, 20, lost(startup=20 + 2 * 20, grow=1))
    run.advance(52.0)
    assert told(run) == (10.0 * 20 + 24.0 * 10, 20 + 3 * 10, lost(startup=60, grow=1 + 3))


def test_in_place_nodes_that_join_at_different_times_regroup_twice() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0})
    run.advance(10.0)
    run.give({1})
    run.advance(32.0)
    # 20 s until the first is ready, 1 s stall, 9 s alone, 1 s stall of both, 1 s together.
    assert told(run) == (10.0 * 9 + 18.0, 9 + 2, lost(startup=20 + 20, grow=1 + 2))


def test_in_place_losing_a_node_that_still_starts_costs_no_stall() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0})
    run.advance(21.0)
    run.give({1, 2})
    run.advance(31.0)
    run.take({1}, Cause.PREEMPTION)
    run.advance(41.0)
    run.take({2}, Cause.SHRINK)
    # At 41 s the other was ready, so that it has just begun to stall; losing it costs a stall like any node's.
    run.advance(50.0)
    assert run.lost_node_s == lost(startup=20 + 2 * 10 + 10, grow=1 + 1, shrink=1)
    assert run.samples == 10.0 * (20 + 7)


def test_in_place_losing_a_productive_node_costs_a_stall_and_the_joining_ones_go_on_starting() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0, 1})
    run.advance(21.0)
    run.give({2})
    run.take({1}, Cause.PREEMPTION)
    run.advance(43.0)
    assert told(run) == (10.0 * 19 + 18.0, 19 + 2, lost(startup=40 + 20, grow=2 + 2, preemption=1))


def test_in_place_who_loses_all_that_have_started_has_nothing_to_stall() -> None:
    run = new_run(CostModel.IN_PLACE)
    run.give({0})
    run.advance(21.0)
    run.give({1})
    run.advance(40.5)
    run.take({0}, Cause.PREEMPTION)
    run.advance(43.0)
    # The node that joined at 21 s is ready at 41 s as before, and trains 1 s later.
    assert told(run) == (10.0 * (19.5 + 1), 19.5 + 1, lost(startup=20 + 20, grow=1 + 1))


def test_below_its_minimum_a_trainer_makes_nothing() -> None:
    run = new_run(CostModel.IN_PLACE, min_nodes=2)
    run.give({0})
    run.advance(10.0)
    run.give({1})
    run.advance(32.0)
    # The first is ready at 20 s and waits for the second until 30 s; one of these seconds is its own stall.
    assert told(run) == (18.0, 2, lost(startup=20 + 20 + 9, grow=1 + 2))


def test_without_costs_all_granted_time_is_productive() -> None:
    run = new_run(CostModel.NONE)
    run.give({0, 1, 2})
    run.advance(5.0)
    run.take({0}, Cause.PREEMPTION)
    run.give({3, 4})
    run.advance(10.0)
    assert told(run) == (24.0 * 5 + 28.0 * 5, 3 * 5 + 4 * 5, NO_LOSS)


def test_the_end_is_known_ahead_through_stalls_and_starts() -> None:
    run = new_run(CostModel.IN_PLACE, samples=10.0 * 9 + 18.0 * 4.5)
    run.give({0})
    run.advance(10.0)
    run.give({1})
    assert run.finish_s() == 31.0 + 4.5
    assert (run.now_s, run.samples, run.productive) == (10.0, 0.0, 0)


def test_what_never_ends_has_no_end() -> None:
    endless, empty, below = new_run(), new_run(samples=1.0), new_run(samples=1.0, min_nodes=2)
    endless.give({0})
    below.give({0})
    assert [run.finish_s() for run in (endless, empty, below)] == [math.inf] * 3


def test_nothing_goes_on_after_the_end() -> None:
    """Nodes that were still starting when the trainer ended used to keep it in a loop for ever."""
    run = new_run(CostModel.IN_PLACE, samples=50.0)
    run.give({0})
    run.advance(21.0)
    run.give({1})
    run.advance(26.0)
    run.end()
    before = dataclasses.asdict(run)
    run.advance(1000.0)
    assert dataclasses.asdict(run) == before | {"now_s": 1000.0}
    assert (run.samples, run.end_s, run.sizes) == (50.0, 26.0, [(0.0, 1), (21.0, 1 + 1), (26.0, 0)])


def test_of_several_sizes_at_one_time_the_last_is_kept() -> None:
    run = new_run()
    run.give({0, 1})
    run.take({0}, Cause.SHRINK)
    assert (run.sizes, run.rescales) == ([(0.0, 1)], 2)


SECONDS = st.sampled_from((0.0, 0.5, 7.0, 20.0, 61.0))
STEPS = st.lists(st.tuples(SECONDS, st.sets(st.integers(0, 3)), st.sampled_from(Cause)), max_size=8)
COSTS = st.sampled_from([(model, {}) for model in CostModel] + [(CostModel.IN_PLACE, {"startup_s": 3.0})])


def walked(run: TrainerRun, steps: list[tuple[float, set[int], Cause]], pieces: int = 1) -> TrainerRun:
    """The run after each step's seconds, after which it gives and takes until it has just the step's nodes."""
    for seconds, nodes, cause in steps:
        begin_s = run.now_s
        for piece in range(1, pieces + 1):
            run.advance(begin_s + seconds * piece / pieces)
        if gone := run.nodes - nodes:
            run.take(gone, cause)
        if new := nodes - run.nodes:
            run.give(new)
    return run


@given(cost=COSTS, steps=STEPS, min_nodes=st.integers(1, 3))
def test_losses_and_productive_time_are_all_granted_time(cost: Any, steps: Any, min_nodes: int) -> None:
    run = walked(new_run(cost[0], min_nodes, **cost[1]), steps)
    sizes = [len(nodes) for _, nodes, _ in steps]
    held = sum(size * seconds for size, (seconds, _, _) in zip(sizes, steps[1:], strict=False))
    assert run.granted_node_s == pytest.approx(held)
    assert run.productive_node_s + sum(run.lost_node_s.values()) == pytest.approx(run.granted_node_s)
    assert run.samples <= run.productive_node_s * RATES[1] + 1e-9


@given(cost=COSTS, steps=STEPS, min_nodes=st.integers(1, 3), pieces=st.integers(2, 5))
def test_looking_at_a_run_changes_nothing(cost: Any, steps: Any, min_nodes: int, pieces: int) -> None:
    one = walked(new_run(cost[0], min_nodes, **cost[1]), steps)
    other = walked(new_run(cost[0], min_nodes, **cost[1]), steps, pieces)
    assert (one.samples, one.productive_node_s) == pytest.approx((other.samples, other.productive_node_s))
    assert one.lost_node_s == pytest.approx(other.lost_node_s)
    assert (one.sizes, one.nodes) == (other.sizes, other.nodes)


@given(cost=COSTS, steps=STEPS, min_nodes=st.integers(1, 3), more=st.floats(0.1, 3000.0))
def test_a_run_ends_where_its_end_was_foretold(cost: Any, steps: Any, min_nodes: int, more: float) -> None:
    had = walked(new_run(cost[0], min_nodes, **cost[1]), steps).samples
    run = walked(new_run(cost[0], min_nodes, samples=had + more, **cost[1]), steps)
    end_s = run.finish_s()
    if end_s == math.inf:
        assert len(run.nodes) < min_nodes
        return
    run.advance(end_s - 0.01)
    assert run.samples < had + more
    run.advance(end_s)
    assert run.samples == pytest.approx(had + more)
