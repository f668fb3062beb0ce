"""The value of a composition is the same computed in batches, one by one, and node by node."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import compositions
from num_examples import scaled
from oakum_solver.draft import Draft
from oakum_solver.errors import InfeasiblePlanError
from oakum_solver.node_assignment import assign_nodes
from oakum_solver.objectives import NamedObjective
from oakum_solver.plan import Allocation, Plan, Reason, Why
from oakum_solver.pools import Composition
from oakum_solver.problem import PUBLISHED, Problem
from oakum_solver.size_values import size_values
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify
from random_problems import EVERY_TERM, OBJECTIVES, problems

TERMS = (
    PUBLISHED,
    EVERY_TERM,
    *(
        replace(EVERY_TERM, **{term: False})
        for term in ("startup", "new_rate", "horizons", "departures", "completion")
    ),
)
UNEXPLAINED = Reason(Why.UNEXPLAINED, "")


def close(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-7)


def changing_nothing_is_allowed(problem: Problem) -> bool:
    return all(not (held := problem.held[t.id]) or t.allows(len(held)) for t in problem.trainers)


@settings(deadline=None)
@given(problems(terms=TERMS))
def test_the_table_of_sizes_is_exact_for_who_stays_or_shrinks(problem: Problem) -> None:
    model = ValueModel(problem)
    values = size_values(model)
    for j, trainer in enumerate(problem.trainers):
        for nodes in range(min(model.held[j], model.largest) + 1):
            if nodes == 0 or trainer.allows(nodes):
                assert values[j, nodes] == close(model.value(j, model.kept(j, nodes)))
            else:
                assert values[j, nodes] == -math.inf


@settings(deadline=None)
@given(problems(terms=TERMS, departures=False))
def test_the_table_of_sizes_is_exact_where_all_nodes_are_alike(problem: Problem) -> None:
    model = ValueModel(problem)
    for j, row in enumerate(size_values(model)):
        allowed = {sum(composition.values()): composition for composition in compositions(model, j)}
        for nodes, value in enumerate(row.tolist()):
            if nodes in allowed:
                assert value == close(model.value(j, allowed[nodes]))
            else:
                assert value == -math.inf


@settings(deadline=None, max_examples=scaled(150))
@given(st.data(), st.booleans())
def test_a_drafts_gains_are_the_differences_of_its_values(data: st.DataObject, typed: bool) -> None:
    problem = data.draw(problems(terms=TERMS, typed=typed, social=True))
    model = ValueModel(problem)
    draft = Draft(model)
    draft.shrink_to_limits()
    for j, trainer in enumerate(problem.trainers):
        if data.draw(st.booleans()) and draft.sizes()[j] > trainer.min_nodes:
            draft.shrink(j, data.draw(st.integers(trainer.min_nodes, draft.sizes()[j] - 1)))
    for _ in range(data.draw(st.integers(1, 3))):
        _check_gains(draft)
        choices = [
            (j, pool, more)
            for pool, free in enumerate(draft.free)
            for j, row in enumerate(draft.gains(pool).tolist() if free else [])
            for more, gain in enumerate(row)
            if more and gain > -math.inf
        ]
        if not choices:
            break
        draft.add(*data.draw(st.sampled_from(choices)))


def _check_gains(draft: Draft) -> None:
    """Against the value of each composition, one by one."""
    model = draft.model
    for pool, free in enumerate(draft.free):
        if not free:
            continue
        for j, row in enumerate(draft.gains(pool).tolist()):
            trainer, after = model.trainers[j], draft.after[j]
            assert row[0] == 0.0
            for more in range(1, min(free, len(row) - 1) + 1):
                grown = {**after, pool: after.get(pool, 0) + more}
                size = sum(grown.values())
                allowed = trainer.allows(size) and not draft.shrunk[j]
                if allowed and (model.rate(j, grown) > 0 or not model.typed):
                    assert row[more] == close(model.value(j, grown) - model.value(j, after))
                else:
                    assert row[more] == -math.inf


@st.composite
def compositions_of_all(draw: st.DrawFn, model: ValueModel) -> list[Composition]:
    """What each trainer gets, at random, within the nodes there are."""
    left = [pool.size for pool in model.pools.pools]
    drawn: list[Composition] = []
    for j in range(len(model.trainers)):
        fitting = [
            composition
            for composition in compositions(model, j)
            if all(count <= left[pool] for pool, count in composition.items())
        ]
        drawn.append(draw(st.sampled_from(fitting)))
        for pool, count in drawn[-1].items():
            left[pool] -= count
    return drawn


def plan_of(model: ValueModel, after: list[Composition]) -> Plan:
    grants = assign_nodes(model, after)
    value = math.fsum(model.values(after))
    allocations = tuple(Allocation(t.id, grants[t.id], UNEXPLAINED) for t in model.trainers)
    return Plan(allocations, value, math.inf, "random", 0.0, optimal=False)


@settings(deadline=None, max_examples=scaled(200))
@given(st.data(), st.booleans())
def test_any_composition_is_worth_node_by_node_what_the_model_says(data: st.DataObject, typed: bool) -> None:
    problem = data.draw(problems(most_trainers=3, most_nodes=7, terms=TERMS, objectives=OBJECTIVES, typed=typed))
    model = ValueModel(problem)
    after = data.draw(compositions_of_all(model))
    plan = plan_of(model, after)
    verify(problem, plan)
    assert [len(allocation.nodes) for allocation in plan.allocations] == [sum(c.values()) for c in after]
    wrong = plan.value + 1e-3 * max(1.0, abs(plan.value))
    with pytest.raises(InfeasiblePlanError, match="recomputed"):
        verify(problem, Plan(plan.allocations, wrong, math.inf, "random", 0.0, optimal=False))


@settings(deadline=None)
@given(problems(terms=TERMS, typed=True))
def test_one_by_one_and_all_at_once_are_the_same(problem: Problem) -> None:
    model = ValueModel(problem)
    held = [dict(composition) for composition in model.pools.held]
    one_by_one = [model.value(j, composition) for j, composition in enumerate(held)]
    assert model.values(held) == close(one_by_one)  # type: ignore[arg-type]
    assert Draft(model).values() == model.values(held)


@settings(deadline=None)
@given(problems(terms=(PUBLISHED,), objectives=(NamedObjective.THROUGHPUT,)))
def test_the_published_terms_give_the_published_formula(problem: Problem) -> None:
    values = size_values(ValueModel(problem))
    for trainer, row in zip(problem.trainers, values, strict=True):
        held = len(problem.held[trainer.id])
        before = trainer.curve.rate(trainer.fitting(held))
        for nodes in np.flatnonzero(np.isfinite(row)).tolist():
            stall_s = trainer.grow_stall_s if nodes > held else trainer.shrink_stall_s if nodes < held else 0.0
            made = problem.look_ahead_s * trainer.curve.rate(nodes) - before * stall_s
            assert row[nodes] == close(trainer.weight * made)
