"""From a problem to a verified plan, in time."""

import time
from dataclasses import replace
from pathlib import Path

import pulp
import pytest

from cells import each
from oakum_solver.allocate import loose_bound
from oakum_solver.errors import ProblemError
from oakum_solver.plan import Plan
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.value import ValueModel
from processes import any_runs

ELASTIC: tuple[Policy, ...] = ("milp", "greedy")
STEP = Curve(((3, 0.0), (4, 40.0), (5, 41.0)))
"""Worth nothing below four nodes: no greedy order of single nodes finds it."""
SIZES_TRAP = Problem(
    trainers=tuple(
        PlannedTrainer(id_, curve, max_nodes=5)
        for id_, curve in (("a", Curve(((3, 31.0),))), ("b", STEP), ("c", Curve(((2, 10.0),))))
    ),
    groups=(NodeGroup(("n1", "n2", "n3", "n4", "n5")),),
    terms=PUBLISHED,
)
"""The best value per node is a's, which leaves two nodes for c: 41 a second. b with one for a: 50."""
TYPES_TRAP = Problem(
    trainers=(
        PlannedTrainer(
            "a", STEP, max_nodes=2, curves_by_type={"g": Curve(((2, 200.0),)), "c": Curve(((2, 180.0),))}
        ),
        PlannedTrainer("b", STEP, max_nodes=2, curves_by_type={"g": Curve(((2, 160.0),))}),
    ),
    groups=(NodeGroup(("g1", "g2"), node_type="g"), NodeGroup(("c1", "c2"), node_type="c")),
    terms=PUBLISHED,
)
"""a outbids b for the fast nodes, which b cannot do without: 200 a second. With the slow ones for a: 340."""


def timeless(plan: Plan) -> Plan:
    return replace(plan, solve_s=0.0)


def put_on_path(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a `cbc` of the test's own the only one on PATH."""
    (folder / "bin").mkdir()
    (folder / "bin" / "cbc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "cbc").chmod(0o755)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", "/absent/cbc")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")


def put_highspy(module: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a `highspy` of the test's own the one that child processes import."""
    (folder / "highspy.py").write_text(module)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_sizes_alone_are_decided_exactly() -> None:
    greedy, best = solve(SIZES_TRAP, policy="greedy"), solve(SIZES_TRAP)
    assert [len(allocation.nodes) for allocation in best.allocations] == [1, 4, 0]
    assert best.value == pytest.approx(120 * (31 / 3 + 40))
    assert (best.solver, best.optimal, best.gap) == ("exact", True, 0.0)
    assert greedy.value < best.value <= greedy.bound
    assert (greedy.solver, greedy.optimal) == ("greedy", False)
    assert greedy.gap > 0


def test_the_milp_finds_what_greedy_misses() -> None:
    greedy, best = solve(TYPES_TRAP, policy="greedy"), solve(TYPES_TRAP)
    assert (best.grant("a"), best.grant("b")) == (("c1", "c2"), ("g1", "g2"))
    assert (best.value, best.gap) == (pytest.approx(120 * (180 + 160)), 0.0)
    assert (best.solver, best.optimal) == ("cbc", True)
    assert (greedy.value, greedy.solver, greedy.optimal) == (pytest.approx(120 * 200), "greedy", False)
    assert greedy.bound >= best.value


@pytest.mark.parametrize(
    "script",
    ["exit 1", "kill -SEGV $$", "exit 0", 'for last; do :; done; echo garbage > "$last"'],
    ids=["fails", "crashes", "says nothing", "garbage"],
)
def test_a_failing_cbc_costs_quality_only(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(script, tmp_path, monkeypatch)
    plan, greedy = solve(TYPES_TRAP), solve(TYPES_TRAP, policy="greedy")
    assert (plan.value, plan.solver, plan.optimal) == (greedy.value, "greedy", False)


def test_a_cbc_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = pulp.PULP_CBC_CMD.pulp_cbc_path
    put_on_path(f'exec {shipped} "$@"', tmp_path, monkeypatch)
    assert solve(TYPES_TRAP).solver == "cbc"


@pytest.mark.parametrize("script", ["sleep 60", "while :; do :; done"], ids=["sleeps", "spins"])
def test_a_hanging_cbc_is_answered_within_the_time_limit(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids = tmp_path / "pids"
    put_on_path(f"echo $$ > {pids}\n{script}", tmp_path, monkeypatch)
    started_s = time.monotonic()
    plan = solve(replace(TYPES_TRAP, time_limit_s=2.0))
    assert time.monotonic() - started_s < 30.0
    assert (plan.solver, plan.optimal) == ("greedy", False)
    assert not any_runs(pids)


def test_a_crashing_highs_costs_quality_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_highspy("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", tmp_path, monkeypatch)
    asked = replace(TYPES_TRAP, milp_solver="highs")
    plan, greedy = solve(asked), solve(asked, policy="greedy")
    assert (plan.value, plan.solver, plan.optimal) == (greedy.value, "greedy", False)


def test_highs_finds_what_cbc_finds() -> None:
    pytest.importorskip("highspy")
    patient = replace(TYPES_TRAP, time_limit_s=60.0)
    by_cbc, by_highs = solve(patient), solve(replace(patient, milp_solver="highs"))
    assert by_highs.solver == "highs"
    assert timeless(replace(by_highs, solver="cbc")) == timeless(by_cbc)


@pytest.mark.parametrize("asked", [SIZES_TRAP, TYPES_TRAP], ids=["sizes", "types"])
def test_no_time_at_all_still_gives_a_plan(asked: Problem) -> None:
    plan = solve(replace(asked, time_limit_s=0.0))
    assert plan.value > 0
    assert plan.bound >= plan.value


def many_pools(typed: bool) -> Problem:
    """40 trainers, half of 200 nodes held, which leave in 20 cohorts."""
    curve, fast = (Curve(tuple((n, rate * n**0.8) for n in (1, 2, 4, 8, 16, 32, 64))) for rate in (10.0, 70.0))
    curves = {"cpu": curve, "gpu": fast} if typed else None
    trainers = tuple(
        PlannedTrainer(f"t{j}", curve, weight=1.0 + j % 7, curves_by_type=curves, mixes_types=j % 2 == 0)
        for j in range(40)
    )
    return Problem(
        trainers,
        tuple(
            NodeGroup(
                tuple(f"n{pool}.{owner}.{i}" for i in range(5)),
                f"t{2 * pool}" if owner else None,
                horizon_s=60.0 * (1 + pool % 5),
                node_type=("cpu", "gpu")[pool % 2],
                cohort=f"c{pool}",
            )
            for pool in range(20)
            for owner in (0, 1)
        ),
    )


@pytest.mark.parametrize("typed", [False, True], ids=["alike", "typed"])
def test_many_pools_are_answered_within_the_time_limit(
    typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path("sleep 60", tmp_path, monkeypatch)
    started_s = time.process_time()
    plan = solve(replace(many_pools(typed), time_limit_s=0.5))
    assert time.process_time() - started_s < 10.0
    assert plan.value > 0


@each("policy", POLICIES)
def test_no_trainer_is_an_empty_plan(policy: Policy) -> None:
    plan = solve(Problem((), (NodeGroup(("n1",)), NodeGroup(("n2",), horizon_s=60.0))), policy)
    assert (plan.allocations, plan.value, plan.optimal, plan.gap) == ((), 0.0, True, 0.0)


@each("policy", POLICIES)
@each("groups", [(), (NodeGroup(()),)], ids=["no group", "an empty group"])
def test_no_node_gives_every_trainer_nothing(policy: Policy, groups: tuple[NodeGroup, ...]) -> None:
    for trainer in (
        PlannedTrainer("a", STEP, user="ada"),
        PlannedTrainer("a", STEP, curves_by_type={"gpu": STEP}, guaranteed=True),
    ):
        for caps in ({}, {"ada": 3}):
            plan = solve(Problem((trainer,), groups, user_caps=caps), policy)
            assert (plan.grant("a"), plan.value) == ((), 0.0)


def test_a_greedy_plan_that_is_proven_optimal_needs_no_solver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(f"touch {tmp_path / 'started'}", tmp_path, monkeypatch)
    plan = solve(Problem((PlannedTrainer("a", Curve(((4, 40.0),))),), (NodeGroup(("n1", "n2")),)))
    assert (len(plan.grant("a")), plan.solver, plan.optimal) == (2, "greedy", True)
    assert not (tmp_path / "started").exists()


@each("policy", POLICIES)
def test_a_trainer_left_below_its_minimum_gives_up_what_it_has_left(policy: Policy) -> None:
    trainer = PlannedTrainer("a", Curve(((4, 40.0),)), min_nodes=3)
    for groups in ((NodeGroup(("n1", "n2"), "a"),), (NodeGroup(("n1",), "a"), NodeGroup(("n2",), "a", 60.0))):
        assert solve(Problem((trainer,), groups), policy).grant("a") == ()


@each("policy", POLICIES)
def test_a_trainer_above_a_lowered_maximum_shrinks_to_it(policy: Policy) -> None:
    trainer = PlannedTrainer("a", Curve(((4, 40.0),)), max_nodes=2)
    alike = (NodeGroup(("n1", "n2", "n3"), "a"),)
    mixed = (NodeGroup(("n1", "n2"), "a"), NodeGroup(("n3",), "a", 60.0), NodeGroup(("n4",), horizon_s=60.0))
    for groups in (alike, mixed):
        assert solve(Problem((trainer,), groups), policy).grant("a") == ("n1", "n2")


@pytest.mark.parametrize("policy", ELASTIC)
def test_equal_trainers_are_not_shuffled(policy: Policy) -> None:
    curve = Curve(((4, 40.0),))
    asked = Problem(
        (PlannedTrainer("a", curve), PlannedTrainer("b", curve)),
        (NodeGroup(("n1",), "a"), NodeGroup(("n2", "n3"), "b")),
    )
    assert [allocation.nodes for allocation in solve(asked, policy).allocations] == [("n1",), ("n2", "n3")]


def test_reasons_are_left_out_where_nobody_asks() -> None:
    unexplained, plan = solve(SIZES_TRAP, explained=False), solve(SIZES_TRAP)
    assert [allocation.nodes for allocation in unexplained.allocations] == [a.nodes for a in plan.allocations]
    assert {allocation.reason.why.value for allocation in unexplained.allocations} == {"unexplained"}


@each("name", ["look_ahead_s", "time_limit_s", "gap"])
@each("number", [-1.0, float("nan"), float("inf")])
def test_a_number_that_makes_no_sense_is_refused(name: str, number: float) -> None:
    with pytest.raises(ProblemError, match=name):
        replace(SIZES_TRAP, **{name: number})  # type: ignore[arg-type]


def test_what_a_trainer_earns_on_more_nodes_than_it_may_have_counts_in_the_bound() -> None:
    """Until they leave, or it has shrunk, it trains on those that it holds."""
    crowded = PlannedTrainer("a", Curve(((1, 0.0), (4, 160.0))), max_nodes=1, startup_s=0.0)
    held = (NodeGroup(("n0",), owner="a"), NodeGroup(("n1", "n2"), owner="a", horizon_s=45.0))
    problem = Problem((crowded,), held)
    worth = solve(problem).value
    assert worth > 0
    assert loose_bound(ValueModel(problem)) >= worth
