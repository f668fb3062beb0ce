"""Trainers that can train on certain numbers of nodes only."""

from dataclasses import replace

import pytest

from cells import each
from oakum_solver.errors import InfeasiblePlanError, ProblemError
from oakum_solver.problem import Curve, NodeGroup, PlannedTrainer, Problem
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.verify import verify


def trainer(id_: str, *sizes: int, rate: float = 1.0, **settings: object) -> PlannedTrainer:
    """Linear, without stalls or start-up."""
    free = {"startup_s": 0.0, "grow_stall_s": 0.0, "shrink_stall_s": 0.0}
    bounds = {"min_nodes": sizes[0], "max_nodes": sizes[-1]} if sizes else {}
    curve = Curve(((64, 64 * rate),))
    return PlannedTrainer(id_, curve, sizes=sizes, **{**free, **bounds, **settings})  # type: ignore[arg-type]


def nodes(first: int, last: int, owner: str | None = None, node_type: str = "cpu", **fields: object) -> NodeGroup:
    names = tuple(f"n{number}" for number in range(first, last + 1))
    return NodeGroup(names, owner, node_type=node_type, **fields)  # type: ignore[arg-type]


def granted(policy: Policy, trainers: tuple[PlannedTrainer, ...], *groups: NodeGroup) -> list[int]:
    return [len(allocation.nodes) for allocation in solve(Problem(trainers, groups), policy).allocations]


@each("policy", POLICIES)
def test_of_seven_nodes_four_are_used_and_three_go_to_others(policy: Policy) -> None:
    assert granted(policy, (trainer("a", 1, 2, 4, 8),), nodes(1, 7)) == [4]
    assert granted(policy, (trainer("a", 1, 2, 4, 8),), nodes(1, 7, "a")) == [4]
    one, other = trainer("a", 1, 2, 4, 8, rate=2.0), trainer("b", max_nodes=3)
    assert granted(policy, (one, other), nodes(1, 7, "a")) == [4, 3]


@each("policy", POLICIES)
def test_the_eighth_node_is_taken_where_it_is_free(policy: Policy) -> None:
    assert granted(policy, (trainer("a", 1, 2, 4, 8),), nodes(1, 7, "a"), nodes(8, 8)) == [8]


@each("policy", POLICIES)
def test_a_size_is_made_up_of_nodes_that_leave_at_different_times(policy: Policy) -> None:
    groups = nodes(1, 3, horizon_s=600.0, cohort="x"), nodes(4, 8, horizon_s=900.0, cohort="y")
    assert granted(policy, (trainer("a", 8, 16, rate=1.0),), *groups) == [8]
    assert granted(policy, (trainer("a", 2, 8),), nodes(9, 10, "a"), *groups) == [8]


@each("policy", ("milp", "greedy"))
def test_a_size_is_made_up_of_several_types_where_they_mix(policy: Policy) -> None:
    curves = {"cpu": Curve(((64, 64.0),)), "gpu": Curve(((64, 128.0),))}
    mixed = trainer("a", 1, 2, 4, 8, curves_by_type=curves, mixes_types=True)
    assert granted(policy, (mixed,), nodes(1, 3), nodes(4, 8, node_type="gpu")) == [8]
    assert granted(policy, (replace(mixed, mixes_types=False),), nodes(1, 3), nodes(4, 8, node_type="gpu")) == [4]


@each("policy", POLICIES)
def test_a_users_cap_between_two_sizes_leaves_the_smaller_one(policy: Policy) -> None:
    asked = Problem((trainer("a", 2, 4, user="ada"),), (nodes(1, 4, "a"),), user_caps={"ada": 3})
    assert [len(allocation.nodes) for allocation in solve(asked, policy).allocations] == [2]


def test_a_plan_of_another_size_is_found_out() -> None:
    asked = Problem((trainer("a"),), (nodes(1, 3),))
    plan = solve(asked)
    with pytest.raises(InfeasiblePlanError, match=r"a is granted 3 nodes: expected 0 or one of 1, 2, 4"):
        verify(replace(asked, trainers=(trainer("a", 1, 2, 4),)), plan)


def test_sizes_rise_and_bounds_are_among_them() -> None:
    with pytest.raises(ProblemError, match=r"sizes 1, 3, 3, 4: expected them in rising order, each once"):
        trainer("a", 1, 3, 3, 4)
    with pytest.raises(ProblemError, match=r"max_nodes is 5: expected one of its sizes, 1, 4"):
        trainer("a", 1, 4, max_nodes=5)
