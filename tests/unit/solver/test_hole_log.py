"""A log of holes: its windows and its changes."""

import math

import numpy as np
import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.logs.holes import HoleLog, changes, count_changes

Hole = tuple[str, float, float]


def hole_log(*holes: Hole, duration_s: float = 100.0, notes: tuple[str, ...] = ()) -> HoleLog:
    holes = tuple(sorted(holes, key=lambda hole: hole[1]))
    return HoleLog(
        name="log.csv",
        nodes=("a", "b", "c"),
        node=np.array(["abc".index(name) for name, _, _ in holes], dtype=np.int32),
        start_s=np.array([start_s for _, start_s, _ in holes], dtype=np.float64),
        end_s=np.array([end_s for _, _, end_s in holes], dtype=np.float64),
        duration_s=duration_s,
        cut_s=7.0,
        notes=notes,
    )


def holes(log: HoleLog) -> list[Hole]:
    return [
        (log.nodes[node], start_s, end_s)
        for node, start_s, end_s in zip(log.node, log.start_s.tolist(), log.end_s.tolist(), strict=True)
    ]


def listed(log: HoleLog) -> list[tuple[float, set[str], set[str]]]:
    return [(at, {log.nodes[n] for n in leave}, {log.nodes[n] for n in join}) for at, leave, join in changes(log)]


def test_a_log_knows_its_idle_node_time() -> None:
    log = hole_log(("a", 0, 10), ("b", 5, 10))
    assert (log.num_holes, log.idle_node_s) == (2, 15.0)


def test_all_changes_of_one_time_come_together() -> None:
    log = hole_log(("a", 0, 10), ("b", 0, 10), ("c", 10, 20), ("a", 15, 100))
    assert listed(log) == [
        (0.0, set(), {"a", "b"}),
        (10.0, {"a", "b"}, {"c"}),
        (15.0, set(), {"a"}),
        (20.0, {"c"}, set()),
        (100.0, {"a"}, set()),
    ]
    assert count_changes(log) == 5


def test_a_node_whose_next_hole_begins_at_once_leaves_and_joins() -> None:
    assert listed(hole_log(("a", 0, 10), ("a", 10, 20)))[1] == (10.0, {"a"}, {"a"})


def test_a_log_without_holes_has_no_changes() -> None:
    assert (listed(hole_log()), count_changes(hole_log()), hole_log().idle_node_s) == ([], 0, 0.0)


def test_a_window_clips_holes_and_starts_at_0() -> None:
    log = hole_log(("a", 0, 20), ("b", 5, 100), ("c", 30, 40), ("a", 60, 70), notes=("a note",))
    window = log.between(20.0, 60.0)
    assert holes(window) == [("b", 0.0, 40.0), ("c", 10.0, 20.0)]
    assert (window.duration_s, window.cut_s, window.nodes) == (40.0, 0.0, log.nodes)
    assert window.notes == ("only the time from 0.0 h to 0.0 h of 0.0 h", "a note")


def test_a_window_ends_with_the_log() -> None:
    window = hole_log(("a", 0, 100)).between(90.0, math.inf)
    assert (holes(window), window.duration_s) == ([("a", 0.0, 10.0)], 10.0)


@each(("start_s", "end_s"), [(10.0, 10.0), (20.0, 10.0), (-1.0, 10.0), (100.0, 200.0), (math.nan, 9.0)])
def test_a_window_without_time_is_refused(start_s: float, end_s: float) -> None:
    with pytest.raises(ProblemError, match="expected a start before the end"):
        hole_log(("a", 0, 100)).between(start_s, end_s)
