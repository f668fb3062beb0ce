"""From a problem to a verified plan."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from oakum_solver import cbc
from oakum_solver.errors import MilpError, ProblemError
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.solve import solve

STEP = Curve(((3, 0.0), (4, 40.0), (5, 41.0)))
"""Worth nothing below four nodes: no greedy order of single nodes finds it."""
GREEDY_TRAP = Problem(
    trainers=tuple(
        Trainer(id_, curve, max_nodes=5, startup_s=0.0)
        for id_, curve in (("a", Curve(((3, 31.0),))), ("b", STEP), ("c", Curve(((2, 10.0),))))
    ),
    groups=(NodeGroup(("n1", "n2", "n3", "n4", "n5")),),
)
"""The best value per node is a's, which leaves two nodes for c: 41 a second. b with one for a: 50."""


def test_the_milp_finds_what_greedy_misses() -> None:
    greedy, best = solve(GREEDY_TRAP, policy="greedy"), solve(GREEDY_TRAP)
    assert [len(allocation.nodes) for allocation in best.allocations] == [1, 4, 0]
    assert best.value == pytest.approx(120 * (31 / 3 + 40))
    assert (best.solver, best.optimal, best.gap) == ("cbc", True, 0.0)
    assert greedy.value < best.value <= greedy.bound
    assert (greedy.solver, greedy.optimal) == ("greedy", False)
    assert greedy.gap > 0


def test_a_failing_milp_costs_quality_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise MilpError("no CBC here")

    monkeypatch.setattr(cbc, "find_cbc", fail)
    plan = solve(GREEDY_TRAP)
    assert replace(plan, solve_s=0.0) == replace(solve(GREEDY_TRAP, policy="greedy"), solve_s=0.0)


def test_a_hanging_milp_is_answered_within_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cbc").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "cbc").chmod(0o755)
    monkeypatch.setattr(cbc, "find_cbc", lambda: str(tmp_path / "cbc"))
    started_s = time.monotonic()
    plan = solve(replace(GREEDY_TRAP, time_limit_s=0.3))
    assert time.monotonic() - started_s < 0.6
    assert (plan.solver, plan.optimal) == ("greedy", False)


def test_no_time_at_all_still_gives_a_plan() -> None:
    assert solve(replace(GREEDY_TRAP, time_limit_s=0.0)).solver == "greedy"


def test_no_trainer_is_an_empty_plan() -> None:
    plan = solve(Problem((), (NodeGroup(("n1",)),)))
    assert (plan.allocations, plan.value, plan.solver, plan.optimal) == ((), 0.0, "greedy", True)


def test_no_node_gives_every_trainer_nothing() -> None:
    plan = solve(Problem((Trainer("a", STEP),), ()))
    assert (plan.grant("a"), plan.value, plan.optimal) == ((), 0.0, True)


def test_a_greedy_plan_that_is_proven_optimal_needs_no_cbc(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise AssertionError("CBC was started")

    monkeypatch.setattr(cbc, "find_cbc", refuse)
    plan = solve(Problem((Trainer("a", Curve(((4, 40.0),))),), (NodeGroup(("n1", "n2")),)))
    assert (len(plan.grant("a")), plan.solver, plan.optimal) == (2, "greedy", True)


def test_a_trainer_left_below_its_minimum_gives_up_what_it_has_left() -> None:
    trainer = Trainer("a", Curve(((4, 40.0),)), min_nodes=3)
    plan = solve(Problem((trainer,), (NodeGroup(("n1", "n2"), owner="a"),)))
    assert plan.grant("a") == ()


def test_a_trainer_above_a_lowered_maximum_shrinks_to_it() -> None:
    trainer = Trainer("a", Curve(((4, 40.0),)), max_nodes=2)
    plan = solve(Problem((trainer,), (NodeGroup(("n1", "n2", "n3"), owner="a"),)))
    assert plan.grant("a") == ("n1", "n2")


def test_equal_trainers_are_not_shuffled() -> None:
    curve = Curve(((4, 40.0),))
    asked = Problem(
        (Trainer("a", curve), Trainer("b", curve)),
        (NodeGroup(("n1",), owner="a"), NodeGroup(("n2", "n3"), owner="b")),
    )
    assert [allocation.nodes for allocation in solve(asked).allocations] == [("n1",), ("n2", "n3")]


def test_the_same_problem_gives_the_same_plan() -> None:
    assert replace(solve(GREEDY_TRAP), solve_s=0.0) == replace(solve(GREEDY_TRAP), solve_s=0.0)


@pytest.mark.parametrize("name", ["look_ahead_s", "time_limit_s"])
@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_makes_no_sense_is_refused(name: str, seconds: float) -> None:
    with pytest.raises(ProblemError, match=name):
        replace(GREEDY_TRAP, **{name: seconds})
