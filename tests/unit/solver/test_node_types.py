"""Nodes of several types: who can run where, and what a mixture is worth."""

from dataclasses import replace

import pytest

from cells import each
from oakum_solver.errors import InfeasiblePlanError, ProblemError
from oakum_solver.pools import Composition
from oakum_solver.problem import PUBLISHED, Curve, MilpSolver, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import Policy, solve
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify

CPU, GPU = "cpu", "gpu"
ELASTIC: tuple[Policy, ...] = ("milp", "greedy")
NODES = (NodeGroup(("c1", "c2", "c3", "c4"), node_type=CPU), NodeGroup(("g1", "g2"), node_type=GPU))
ON_GPU = Curve(((4, 400.0),))
ON_CPU = Curve(((4, 100.0),))


def linear(rate: float) -> Curve:
    return Curve(((64, 64 * rate),))


def trainer(id_: str, mixes_types: bool = False, **curves: Curve) -> PlannedTrainer:
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0}
    return PlannedTrainer(id_, linear(1.0), curves_by_type=curves, mixes_types=mixes_types, **free)  # type: ignore[arg-type]


def problem(*trainers: PlannedTrainer, groups: tuple[NodeGroup, ...] = NODES) -> Problem:
    return Problem(trainers, groups, look_ahead_s=100.0, terms=PUBLISHED)


def rate(trainer: PlannedTrainer, cpus: int, gpus: int) -> float:
    composition: Composition = {pool: count for pool, count in enumerate((cpus, gpus)) if count}
    return ValueModel(problem(trainer)).rate(0, composition)


def types_of(nodes: tuple[str, ...]) -> set[str]:
    return {node[0] for node in nodes}


def test_a_trainer_makes_nothing_on_a_type_that_it_has_no_curve_for() -> None:
    assert (rate(trainer("a", gpu=ON_GPU), 0, 2), rate(trainer("a", gpu=ON_GPU), 2, 0)) == (200.0, 0.0)
    assert rate(trainer("a", mixes_types=True, gpu=ON_GPU), 2, 2) == 0.0


def test_a_trainer_that_may_not_mix_makes_nothing_on_two_types() -> None:
    assert rate(trainer("a", cpu=ON_CPU, gpu=ON_GPU), 2, 1) == 0.0


def test_on_two_types_each_node_counts_as_it_is_worth_alone() -> None:
    """Four nodes of the slow type are one of the fast type."""
    mixing = trainer("a", mixes_types=True, cpu=ON_CPU, gpu=ON_GPU)
    assert rate(mixing, 4, 2) == pytest.approx(300.0)
    assert rate(mixing, 2, 1) == pytest.approx(150.0)


def test_a_mixture_is_on_the_curve_of_the_faster_type() -> None:
    bent = Curve(((1, 100.0), (2, 140.0), (4, 160.0)))
    mixing = trainer("a", mixes_types=True, cpu=Curve(((1, 50.0),)), gpu=bent)
    assert rate(mixing, 1, 1) == pytest.approx(120.0)
    assert rate(mixing, 2, 2) == pytest.approx(150.0)


@pytest.mark.parametrize("pool", [0, 1])
def test_a_row_of_sizes_begins_to_make_something_where_the_single_sizes_do(pool: int) -> None:
    """However the worth of a slow node is rounded: the curves are 0 up to sizes that mixtures reach exactly."""
    late = Curve(((1, 0.0), (2, 0.0), (3, 3.0)))
    for slow in range(1, 30):
        later = Curve(((3, 0.0), (6, 0.0), (7, 7 * slow / 30), (10, 10.0)))
        mixing = trainer("a", mixes_types=True, cpu=later, gpu=late)
        model = ValueModel(problem(mixing, groups=(replace(NODES[0], nodes=tuple("abcdefghij")), NODES[1])))
        for held in ({}, {0: 3}, {1: 1}, {0: 2, 1: 1}):
            for more, rate in enumerate(model.rate_row(0, held, pool, 6).tolist()):
                single = model.rate(0, held | {pool: held.get(pool, 0) + more} if more else held)
                assert (rate > 0, rate) == (single > 0, pytest.approx(single))


def test_a_minimum_counts_nodes_of_all_types() -> None:
    mixing = replace(trainer("a", mixes_types=True, cpu=ON_CPU, gpu=ON_GPU), min_nodes=3)
    assert (rate(mixing, 1, 1), rate(mixing, 2, 1)) == (0.0, pytest.approx(150.0))


@each("policy", ELASTIC)
@each(("node_type", "nodes"), [(CPU, ("c1", "c2", "c3", "c4")), (GPU, ("g1", "g2"))])
def test_a_trainer_runs_on_its_types_only(policy: Policy, node_type: str, nodes: tuple[str, ...]) -> None:
    plan = solve(problem(trainer("a", False, **{node_type: linear(10.0)})), policy)
    assert plan.grant("a") == nodes


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_trainer_without_its_type_gets_nothing(policy: Policy) -> None:
    plan = solve(problem(trainer("a", tpu=ON_GPU)), policy)
    assert (plan.grant("a"), plan.value) == ((), 0.0)


@pytest.mark.parametrize(("on_cpu", "types"), [(10.0, {"g"}), (20.0, {"c"})])
def test_a_trainer_that_may_not_mix_takes_the_type_that_gives_most(on_cpu: float, types: set[str]) -> None:
    plan = solve(problem(trainer("a", cpu=linear(on_cpu), gpu=linear(30.0))))
    assert types_of(plan.grant("a")) == types


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_trainer_that_may_mix_takes_both(policy: Policy) -> None:
    plan = solve(problem(trainer("a", mixes_types=True, cpu=linear(10.0), gpu=linear(30.0))), policy)
    assert (len(plan.grant("a")), plan.value) == (6, pytest.approx(100 * (4 * 10 + 2 * 30)))


@pytest.mark.parametrize("policy", ELASTIC)
def test_a_trainer_that_may_not_mix_grows_on_the_type_that_it_holds(policy: Policy) -> None:
    held = (NodeGroup(("c1",), "a", node_type=CPU), NodeGroup(("c2",), node_type=CPU), NODES[1])
    plan = solve(problem(trainer("a", cpu=linear(10.0), gpu=linear(30.0)), groups=held), policy)
    assert plan.grant("a") == ("c1", "c2")


@pytest.mark.parametrize("policy", ELASTIC)
def test_for_a_trainer_with_one_curve_all_types_are_alike(policy: Policy) -> None:
    anywhere = PlannedTrainer("a", linear(10.0), startup_s=0.0, grow_stall_s=0.0)
    assert len(solve(problem(anywhere), policy).grant("a")) == 6
    assert len(solve(problem(replace(anywhere, min_nodes=5)), policy).grant("a")) == 6


@pytest.mark.parametrize("milp_solver", ["cbc", "highs"])
def test_the_milp_gives_each_type_to_whom_nothing_else_helps(milp_solver: MilpSolver) -> None:
    """The fast nodes are worth a little more to a, which can do without them, than to b, which cannot."""
    a = replace(trainer("a", cpu=linear(90.0), gpu=linear(100.0)), max_nodes=2)
    b = replace(trainer("b", gpu=linear(80.0)), max_nodes=2)
    asked = replace(
        problem(a, b, groups=(NodeGroup(("g1", "g2"), node_type=GPU), NodeGroup(("c1", "c2"), node_type=CPU))),
        milp_solver=milp_solver,
    )
    greedy, best = solve(asked, "greedy"), solve(asked)
    assert (best.grant("a"), best.grant("b")) == (("c1", "c2"), ("g1", "g2"))
    assert (best.value, best.optimal, best.solver) == (pytest.approx(100 * (2 * 90 + 2 * 80)), True, milp_solver)
    assert greedy.value == pytest.approx(100 * 2 * 100)
    assert greedy.bound >= best.value


@each("first", [CPU, GPU])
@each("policy", ELASTIC)
def test_types_that_are_as_fast_as_each_other_on_one_node_mix_the_same_in_any_order(
    policy: Policy, first: str
) -> None:
    mixing = trainer(
        "a", mixes_types=True, cpu=Curve(((1, 100.0), (2, 150.0))), gpu=Curve(((1, 100.0), (2, 200.0)))
    )
    second = CPU if first == GPU else GPU
    for owner in (None, "a"):
        groups = (NodeGroup((f"{first}1",), owner, node_type=first), NodeGroup((f"{second}1",), node_type=second))
        asked = problem(replace(mixing, min_nodes=1 if owner else 2), groups=groups)
        plan = solve(asked, policy)
        model = ValueModel(asked)
        assert model.rate(0, {0: 1, 1: 1}) == model.rate(0, {1: 1, 0: 1})
        assert plan.value == pytest.approx(100 * model.rate(0, {0: 1, 1: 1}))


def test_a_plan_that_claims_the_worth_of_a_forbidden_mixture_is_refused() -> None:
    mixing = problem(trainer("a", mixes_types=True, cpu=linear(10.0), gpu=linear(30.0)))
    plan = solve(mixing)
    verify(mixing, plan)
    forbidding = replace(mixing, trainers=(replace(mixing.trainers[0], mixes_types=False),))
    with pytest.raises(InfeasiblePlanError, match=r"recomputed, it is 0\.0"):
        verify(forbidding, plan)


def test_a_trainer_whose_type_went_away_gives_its_nodes_up_to_who_can_use_them() -> None:
    stranded, other = trainer("a", gpu=linear(30.0)), trainer("b", cpu=linear(1.0))
    plan = solve(problem(stranded, other, groups=(NodeGroup(("c1", "c2"), "a", node_type=CPU),)))
    assert (plan.grant("a"), plan.grant("b")) == ((), ("c1", "c2"))


def test_curves_for_no_type_are_refused() -> None:
    with pytest.raises(ProblemError, match="names no node type"):
        trainer("a")
