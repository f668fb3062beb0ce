"""The published model, which the benchmark compares with: what it agrees with us in, and what its M forbids."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import random_problem
from num_examples import scaled
from oakum_solver.highs import run_highs
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.solve import solve
from published_model import PublishedAnswer, corrected_big_m, published_big_m, published_value, solve_published

LINEAR = Curve(((64, 640.0),))


def corrected(problem: Problem) -> PublishedAnswer:
    """Solve the published model with corrected constants by HiGHS, since CBC 2.10.3 sometimes calls plans of
    this model optimal that are not."""
    return solve_published(problem, corrected_big_m(problem), time_limit_s=60.0, run=run_highs)


def published(problem: Problem) -> PublishedAnswer:
    return solve_published(problem, published_big_m(problem), time_limit_s=30.0)


def asked(trainers: tuple[PlannedTrainer, ...], holdings: list[int], num_free: int) -> Problem:
    """Trainers that hold so many nodes each, and free nodes, in the published terms."""
    owners = [trainer.id for trainer, held in zip(trainers, holdings, strict=True) for _ in range(held)]
    groups = tuple(
        NodeGroup((f"n{index}",), owner=owner) for index, owner in enumerate([*owners, *[None] * num_free])
    )
    return Problem(trainers, groups, terms=PUBLISHED)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    nodes = sorted(draw(st.sets(st.integers(1, 7), min_size=1, max_size=4)))
    rates = sorted(draw(st.lists(st.integers(1, 100), min_size=len(nodes), max_size=len(nodes))))
    return Curve(tuple(zip(nodes, map(float, rates), strict=True)))


@st.composite
def trainers(draw: st.DrawFn, id_: str) -> PlannedTrainer:
    min_nodes = draw(st.integers(1, 4))
    return PlannedTrainer(
        id_,
        draw(curves()),
        min_nodes=min_nodes,
        max_nodes=min_nodes + draw(st.integers(0, 5)),
        weight=draw(st.sampled_from([1.0, 2.5])),
        grow_stall_s=draw(st.sampled_from([0.0, 18.0, 60.0])),
        shrink_stall_s=draw(st.sampled_from([0.0, 12.0, 60.0])),
        startup_s=0.0,
    )


@st.composite
def small_problems(draw: st.DrawFn) -> Problem:
    """Up to three trainers on two to six nodes, some of them held."""
    jobs = tuple(draw(trainers(id_)) for id_ in "abc"[: draw(st.integers(1, 3))])
    owners = draw(st.lists(st.sampled_from([None, *range(len(jobs))]), min_size=2, max_size=6))
    return asked(jobs, [owners.count(index) for index in range(len(jobs))], owners.count(None))


@settings(max_examples=scaled(10), deadline=None)
@given(small_problems())
def test_the_corrected_model_and_our_plan_are_worth_the_same(problem: Problem) -> None:
    theirs, ours = corrected(problem), solve(problem)
    assert (theirs.failure, theirs.optimal, ours.optimal) == ("", True, True)
    assert theirs.value == pytest.approx(ours.value, rel=1e-6)
    assert ours.value == pytest.approx(
        published_value(problem, {grant.trainer: len(grant.nodes) for grant in ours.allocations})
    )


def test_a_trainer_cannot_start_on_more_than_half_of_the_nodes_in_the_published_model() -> None:
    problem = asked((PlannedTrainer("a", LINEAR, startup_s=0.0),), [0], num_free=6)
    assert published(problem).sizes == {"a": 3}
    assert corrected(problem).sizes == {"a": len(solve(problem).grant("a"))} == {"a": 6}
    assert published(problem).value == corrected(problem).value / 2 == 120 * 30.0


def test_a_trainer_that_must_stop_on_most_of_the_nodes_leaves_the_published_model_without_a_plan() -> None:
    problem = asked((PlannedTrainer("a", LINEAR, min_nodes=6, startup_s=0.0),), [5], num_free=0)
    assert published(problem).nodes is None
    assert "no solution" in published(problem).failure
    assert corrected(problem).nodes == {"a": ()} == {"a": solve(problem).grant("a")}


def test_the_published_model_names_nodes_and_moves_nobody() -> None:
    crowded = PlannedTrainer("a", Curve(((1, 10.0), (2, 11.0))), startup_s=0.0)
    problem = asked((crowded, PlannedTrainer("b", LINEAR, startup_s=0.0)), [2, 1], num_free=1)
    answer = corrected(problem)
    assert answer.nodes is not None
    assert set(answer.nodes["b"]) > {"n2", "n3"}
    assert answer.sizes == {"a": 1, "b": 3}
    assert answer.value == 120 * (10.0 + 30.0) - 11.0 - 10.0
    assert answer.bound == answer.value
    assert answer.num_binaries == 2 * 2 * 4 + 2 * 4 + 3 + 1
    assert solve(problem).value == answer.value


def test_a_seed_names_one_problem() -> None:
    problem = random_problem(5, 40, seed=1, terms=Terms())
    assert problem == random_problem(5, 40, seed=1, terms=Terms())
    assert problem != random_problem(5, 40, seed=2, terms=Terms())
    assert problem.num_nodes == 40
    assert len({group.cohort for group in problem.groups}) == 8
    assert all(len(nodes) <= 64 for nodes in problem.held.values())


def test_nearly_four_fifths_of_the_nodes_of_a_random_problem_are_held() -> None:
    held = [sum(map(len, random_problem(10, 200, seed, PUBLISHED).held.values())) for seed in range(20)]
    assert 0.75 * 200 < sum(held) / len(held) < 0.85 * 200
