"""Replays of logs whose nodes are idle in parts, every number worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import read_idle_log
from oakum_solver.logs.parts import on_whole_nodes, whole_idle_s
from oakum_solver.problem import Bundle, Curve, PlannedTrainer
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay, replay_both
from oakum_solver.replay.result import ReplayResult
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.whole_nodes import achieved_on_whole_nodes
from oakum_solver.replay.workload import WorkItem, Workload

Logs = Callable[[str], HoleLog]
SETTINGS = ReplaySettings(cost=CostModel.NONE)
TWO_NODES = "a,0,100,0,2 a,0,50,1,2 b,0,100,0,2"
"""Of b another slot is never idle."""


@pytest.fixture
def log_of(tmp_path: Path) -> Logs:
    """Makes a log of rows `node,start_s,end_s,slot,slots`."""

    def made(rows: str) -> HoleLog:
        path = tmp_path / "log.csv"
        path.write_text("node,start_s,end_s,slot,slots\n" + "\n".join(rows.split()) + "\n", encoding="utf-8")
        return read_idle_log(path)

    return made


def item(name: str, bundle: Bundle, most: int, rate: float = 10.0, samples: float | None = None) -> WorkItem:
    """A trainer of `rate` samples/s for each slot."""
    curve = Curve(((1, rate), (most, rate * most)) if most > 1 else ((1, rate),))
    return WorkItem(PlannedTrainer(name, curve, max_nodes=most, bundle=bundle), samples=samples)


def replayed(log: HoleLog, *items: WorkItem, settings: ReplaySettings = SETTINGS) -> ReplayResult:
    return replay(log, Workload(items), settings)


def sizes(result: ReplayResult) -> dict[str, list[tuple[float, int]]]:
    return {trainer.name: list(trainer.sizes) for trainer in result.trainers}


def test_a_fragment_of_two_slots_has_them_on_one_node_and_leaves_both_with_one(log_of: Logs) -> None:
    result = replayed(log_of(TWO_NODES), item("pair", 2, 4), item("one", 1, 1))
    assert sizes(result) == {"pair": [(0.0, 2), (50.0, 0)], "one": [(0.0, 1), (100.0, 0)]}
    assert [trainer.samples for trainer in result.trainers] == pytest.approx([20.0 * 50, 10.0 * 100])
    assert result.steps.idle_nodes.tolist() == [3, 2, 0]
    assert result.trainers[0].rescales == 2, "it loses both slots at once, and is not left with one to give up"


def test_a_slot_that_its_fragment_has_left_goes_to_others(log_of: Logs) -> None:
    result = replayed(log_of(TWO_NODES), item("pair", 2, 2), item("two", 1, 2))
    assert sizes(result)["two"] == [(0.0, 1), (50.0, 2), (100.0, 0)]


def test_a_trainer_that_ends_gives_its_slots_back_one_by_one(log_of: Logs) -> None:
    log = log_of("a,0,100,0,2 a,0,100,1,2")
    result = replayed(log, item("pair", 2, 2, samples=20.0 * 50), item("one", 1, 1))
    assert sizes(result) == {"pair": [(0.0, 2), (50.0, 0)], "one": [(0.0, 0), (50.0, 1), (100.0, 0)]}


def test_a_fragment_of_a_node_begins_when_all_of_it_is_idle(log_of: Logs) -> None:
    log = log_of("a,0,100,0,2 a,30,70,1,2 b,20,90,0,1")
    assert sizes(replayed(log, item("whole", "host", 3))) == {
        "whole": [(0.0, 0), (20.0, 1), (30.0, 3), (70.0, 1), (90.0, 0)]
    }


def test_curves_of_fragments_of_several_slots_are_learnt(log_of: Logs) -> None:
    log = log_of("a,0,9000,0,2 a,0,9000,1,2 b,0,9000,0,2 b,100,8000,1,2")
    result = replay_both(log, Workload((item("pair", 2, 4),)), SETTINGS)
    assert result.learnt is not None
    assert result.learnt.efficiency == pytest.approx(result.efficiency)


@each(
    ("rows", "bundle", "most"),
    [("a,0,9,0,2 b,0,9,0,2", 2, 2), ("a,0,9,0,2 a,0,9,1,2", 3, 4), ("a,0,9,0,1", 2, 2), ("a,0,9,0,2", "host", 2)],
)
def test_fragments_that_no_node_of_the_log_has_room_for_are_refused(
    log_of: Logs, rows: str, bundle: Bundle, most: int
) -> None:
    with pytest.raises(ProblemError, match=r"trainer x: its fragments need .* give another slots_per_fragment"):
        replayed(log_of(rows), item("x", bundle, most))


def test_the_part_of_a_log_in_which_nodes_are_idle_as_a_whole(log_of: Logs) -> None:
    log = log_of("a,0,100,0,2 a,20,50,1,2 a,50,60,1,2 b,0,100,0,2 c,0,10,0,1")
    whole = on_whole_nodes(log)
    rows = zip(whole.node.tolist(), whole.start_s.tolist(), whole.end_s.tolist(), strict=True)
    assert [(whole.nodes[node], start, end) for node, start, end in rows] == [
        ("c:0", 0.0, 10.0),
        ("a:0", 20.0, 60.0),
        ("a:1", 20.0, 60.0),
    ]
    assert whole_idle_s(whole) == whole_idle_s(log) == whole.idle_node_s


def test_what_the_same_trainers_achieve_with_whole_nodes_only(log_of: Logs) -> None:
    """x can use one slot of a node's two, y both; z would need more than there are."""
    log = log_of("a,0,100,0,2 a,50,100,1,2 b,0,100,0,2")
    workload = Workload((item("x", 1, 1), item("y", 1, 2, rate=5.0)))
    assert replayed(log, *workload.items).achieved == pytest.approx(50 * (1 + 1) + 50 * (1 + 2))
    assert achieved_on_whole_nodes(log, workload, SETTINGS) == pytest.approx(50 * 2)
    assert achieved_on_whole_nodes(log, Workload((item("x", 1, 1),)), SETTINGS) == pytest.approx(50 * 1)
    large = PlannedTrainer("z", Curve(((8, 1.0),)), min_nodes=8, max_nodes=8)
    assert achieved_on_whole_nodes(log, Workload((WorkItem(large),)), SETTINGS) == 0.0
