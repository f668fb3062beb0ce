"""Plans for random small problems, held against an exact dynamic program."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oakum_solver.greedy import greedy_sizes
from oakum_solver.milp import milp_sizes, proves_optimal
from oakum_solver.objectives import Objective
from oakum_solver.plan import Why
from oakum_solver.problem import Curve, NodeGroup, Problem, Trainer
from oakum_solver.relaxation import relax
from oakum_solver.solve import solve
from oakum_solver.value import ValueTable, total_value, value_table
from oakum_solver.verify import verify


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Rising curves, most of them neither concave nor convex."""
    nodes = sorted(draw(st.sets(st.integers(1, 10), min_size=1, max_size=5)))
    rates = sorted(draw(st.lists(st.integers(0, 1000), min_size=len(nodes), max_size=len(nodes))))
    return Curve(tuple((n, rate / 4) for n, rate in zip(nodes, rates, strict=True)))


@st.composite
def trainers(draw: st.DrawFn, id_: str) -> Trainer:
    seconds = st.sampled_from((0.0, 1.0, 12.5, 40.0))
    min_nodes = draw(st.integers(1, 4))
    return Trainer(
        id_,
        draw(curves()),
        min_nodes,
        max_nodes=draw(st.integers(min_nodes, 10)),
        weight=draw(st.sampled_from((0.0, 0.5, 1.0, 3.0))),
        grow_stall_s=draw(seconds),
        shrink_stall_s=draw(seconds),
        startup_s=draw(seconds),
    )


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Up to four trainers and twelve nodes, with any owners, sizes outside the allowed ones included."""
    ids = "abcd"[: draw(st.integers(1, 4))]
    owners = draw(st.lists(st.sampled_from([None, *ids]), max_size=12))
    horizons = draw(st.lists(st.sampled_from((30.0, 300.0)), min_size=len(owners), max_size=len(owners)))
    members: dict[tuple[str | None, float], list[str]] = {}
    for number, key in enumerate(zip(owners, horizons, strict=True)):
        members.setdefault(key, []).append(f"n{number}")
    return Problem(
        tuple(draw(trainers(id_)) for id_ in ids),
        tuple(NodeGroup(tuple(nodes), owner, horizon_s) for (owner, horizon_s), nodes in members.items()),
        look_ahead_s=draw(st.sampled_from((0.0, 30.0, 120.0))),
        objective=draw(st.sampled_from(Objective)),
    )


def best_value(values: ValueTable, num_nodes: int) -> float:
    """The optimum: over the trainers one by one, the best value for each number of nodes used so far."""
    best = {0: 0.0}
    for table in values.values():
        longer: dict[int, float] = {}
        for used, value in best.items():
            for nodes, more in table.items():
                if used + nodes <= num_nodes:
                    longer[used + nodes] = max(value + more, longer.get(used + nodes, -float("inf")))
        best = longer
    return max(best.values())


@settings(max_examples=150, deadline=None)
@given(problems())
def test_a_plan_is_worth_the_optimum(problem: Problem) -> None:
    plan = solve(problem)
    assert plan.optimal
    assert plan.value == pytest.approx(best_value(value_table(problem), problem.num_nodes), rel=1e-7, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_cbc_finds_the_optimum_from_the_worst_incumbent(problem: Problem) -> None:
    values = value_table(problem)
    nothing = dict.fromkeys(values, 0)
    relaxation = relax(values, problem.num_nodes)
    answer = milp_sizes(values, problem.num_nodes, nothing, relaxation, time_limit_s=5.0)
    optimum = best_value(values, problem.num_nodes)
    assert answer.optimal
    assert total_value(values, answer.sizes) == pytest.approx(optimum, rel=1e-7, abs=1e-9)


@settings(deadline=None)
@given(problems())
def test_greedy_lies_between_changing_nothing_and_the_bound(problem: Problem) -> None:
    values = value_table(problem)
    held = {trainer: len(nodes) for trainer, nodes in problem.held.items()}
    relaxation = relax(values, problem.num_nodes)
    value = total_value(values, greedy_sizes(values, held, problem.num_nodes, relaxation))
    optimum = best_value(values, problem.num_nodes)
    rounding = 1e-9 * max(1.0, abs(optimum))
    assert value <= optimum + rounding
    assert optimum <= relaxation.bound + rounding
    assert not proves_optimal(relaxation.bound, value) or value >= optimum - rounding
    if all(held[trainer] in table for trainer, table in values.items()):
        assert value >= total_value(values, held)


@settings(deadline=None)
@given(problems())
def test_every_plan_passes_its_verification_and_moves_no_trainer(problem: Problem) -> None:
    plan = solve(problem, policy="greedy")
    verify(problem, plan)
    for allocation in plan.allocations:
        held, granted = set(problem.held[allocation.trainer]), set(allocation.nodes)
        assert held <= granted or granted <= held


@settings(deadline=None)
@given(problems())
def test_every_size_has_a_reason_that_its_numbers_bear_out(problem: Problem) -> None:
    plan = solve(problem, policy="greedy")
    for trainer, allocation in zip(problem.trainers, plan.allocations, strict=True):
        reason, size = allocation.reason, len(allocation.nodes)
        assert reason.text
        assert (reason.why is Why.AT_MAXIMUM) == (size == trainer.max_nodes)
        if reason.why is Why.STALL_NOT_WORTH_IT:
            assert reason.gain <= reason.cost
        if reason.why is Why.OTHERS_GAIN_MORE:
            assert reason.other in {other.id for other in problem.trainers} - {trainer.id}
            assert 0 < reason.gain <= reason.cost * (1 + 1e-5)
        if reason.why is Why.BELOW_MINIMUM:
            assert size == 0


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_same_problem_gives_the_same_plan(problem: Problem) -> None:
    assert replace(solve(problem), solve_s=0.0) == replace(solve(problem), solve_s=0.0)
