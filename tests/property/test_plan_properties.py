"""Plans for random small problems, held against every plan there is."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brute_force import best_choice, best_value
from num_examples import scaled
from oakum_solver import milp_candidates
from oakum_solver.objectives import Expression
from oakum_solver.plan import Plan, Why
from oakum_solver.problem import PUBLISHED, PlannedTrainer, Problem, Terms
from oakum_solver.size_values import size_values
from oakum_solver.solve import POLICIES, Policy, solve
from oakum_solver.value import ValueModel
from oakum_solver.verify import verify
from random_problems import EVERY_TERM, LINEAR_OBJECTIVES, OBJECTIVES, problems, random_problem

ELASTIC: tuple[Policy, ...] = ("milp", "greedy")
TINY = {
    "most_trainers": 2,
    "most_nodes": 5,
    "terms": (EVERY_TERM, Terms(), Terms(departures=False), Terms(horizons=False)),
}


def rounding(value: float) -> float:
    return 1e-7 * max(1.0, abs(value))


def timeless(plan: Plan) -> Plan:
    return replace(plan, solve_s=0.0)


def changing_nothing(problem: Problem) -> float | None:
    """What it is worth to leave everything as it is; None where that is not allowed."""
    sizes = [len(problem.held[trainer.id]) for trainer in problem.trainers]
    for trainer, size in zip(problem.trainers, sizes, strict=True):
        if (size == 0 and trainer.guaranteed) or (size and not trainer.allows(size)):
            return None
    for user, cap in problem.user_caps.items():
        if sum(size for t, size in zip(problem.trainers, sizes, strict=True) if t.user == user) > cap:
            return None
    model = ValueModel(problem)
    for j, composition in enumerate(model.pools.held):
        if model.typed and composition and model.rate(j, composition) == 0:
            return None
    return math.fsum(model.values(model.pools.held))


@settings(max_examples=scaled(150), deadline=None)
@given(problems(departures=False))
def test_where_all_nodes_are_alike_a_plan_is_worth_the_optimum(problem: Problem) -> None:
    plan = solve(problem)
    best = best_choice(size_values(ValueModel(problem)), problem.num_nodes)
    assert plan.optimal
    assert plan.value == pytest.approx(best, rel=1e-7, abs=1e-9)
    assert plan.bound == pytest.approx(best, rel=1e-7, abs=1e-9)


@settings(max_examples=scaled(100), deadline=None)
@given(problems(terms=(PUBLISHED,), objectives=LINEAR_OBJECTIVES))
def test_the_published_objective_is_solved_to_the_optimum(problem: Problem) -> None:
    plan, greedy = solve(problem), solve(problem, "greedy")
    best = best_choice(size_values(ValueModel(problem)), problem.num_nodes)
    assert plan.optimal
    assert plan.value == pytest.approx(best, rel=1e-7, abs=1e-9)
    assert greedy.value <= best + rounding(best) <= greedy.bound + 2 * rounding(best)


@settings(max_examples=scaled(60), deadline=None)
@given(problems(**TINY))
def test_a_tiny_problem_is_solved_to_the_optimum_whatever_leaves_when(problem: Problem) -> None:
    check_against_every_plan(problem)


@settings(max_examples=scaled(60), deadline=None)
@given(problems(**TINY, typed=True))
def test_a_tiny_problem_is_solved_to_the_optimum_on_nodes_of_several_types(problem: Problem) -> None:
    check_against_every_plan(problem)


@settings(max_examples=scaled(60), deadline=None)
@given(problems(**TINY, typed=True, social=True))
def test_a_tiny_problem_is_solved_to_the_optimum_within_users_caps(problem: Problem) -> None:
    equals = tuple(replace(trainer, priority=0, guaranteed=False) for trainer in problem.trainers)
    check_against_every_plan(replace(problem, trainers=equals))


def check_against_every_plan(problem: Problem) -> None:
    best = best_value(ValueModel(problem))
    plan, greedy = solve(problem), solve(problem, "greedy")
    assert plan.optimal
    assert plan.value == pytest.approx(best, rel=1e-6, abs=1e-6)
    assert greedy.value <= best + rounding(best)
    assert not greedy.optimal or greedy.value >= best - rounding(best)
    assert greedy.bound >= best - rounding(best), "no plan is worth more than the bound"
    assert plan.bound >= best - rounding(best), "no plan is worth more than the bound"


@settings(max_examples=scaled(100), deadline=None)
@given(problems(social=True, typed=True))
def test_every_plan_obeys_every_rule(problem: Problem) -> None:
    for policy in POLICIES:
        plan = solve(problem, policy)
        verify(problem, plan)
        granted = [node for allocation in plan.allocations for node in allocation.nodes]
        assert len(set(granted)) == len(granted)
        for trainer, allocation in zip(problem.trainers, plan.allocations, strict=True):
            held, nodes = set(problem.held[trainer.id]), set(allocation.nodes)
            assert held <= nodes or nodes <= held, "a migration"
            assert not nodes or trainer.min_nodes <= len(nodes) <= trainer.max_nodes
            assert not nodes or not trainer.sizes or len(nodes) in trainer.sizes
            access = {node: group.access for group in problem.groups for node in group.nodes}
            assert trainer.access is None or {access[node] for node in nodes - held} <= trainer.access
        for user, cap in problem.user_caps.items():
            assert sum(len(plan.grant(t.id)) for t in problem.trainers if t.user == user) <= cap
        assert plan.bound >= plan.value
        assert plan.gap >= 0.0


@settings(max_examples=scaled(100), deadline=None)
@given(problems(typed=True), st.sampled_from(OBJECTIVES))
def test_the_milp_is_worth_no_less_than_greedy_and_greedy_no_less_than_changing_nothing(
    problem: Problem, objective: Expression
) -> None:
    problem = replace(problem, objective=objective)
    greedy, milp, nothing = solve(problem, "greedy"), solve(problem), changing_nothing(problem)
    assert milp.value >= greedy.value - rounding(greedy.value)
    if nothing is not None:
        assert greedy.value >= nothing - rounding(nothing)


@settings(max_examples=scaled(100), deadline=None)
@given(problems(departures=False, social=True))
def test_each_class_of_priority_has_the_best_of_what_those_above_leave(problem: Problem) -> None:
    trainers = tuple(replace(trainer, guaranteed=False) for trainer in problem.trainers)
    problem = replace(problem, trainers=trainers, user_caps={})
    plan, model = solve(problem), ValueModel(problem)
    values = size_values(model)
    left = problem.num_nodes
    sizes = [len(allocation.nodes) for allocation in plan.allocations]
    for _, group in itertools.groupby(
        sorted(range(len(trainers)), key=lambda j: -trainers[j].priority), key=lambda j: trainers[j].priority
    ):
        members = list(group)
        worth = math.fsum(values[j, sizes[j]] for j in members)
        assert worth == pytest.approx(best_choice(values[members], left), rel=1e-7, abs=1e-9)
        left -= sum(sizes[j] for j in members)


@settings(max_examples=scaled(100), deadline=None)
@given(problems(social=True), st.sampled_from(ELASTIC))
def test_guarantees_are_kept_in_the_order_in_which_they_began_as_far_as_nodes_last(
    problem: Problem, policy: Policy
) -> None:
    problem = replace(problem, user_caps={})
    plan, left = solve(problem, policy), problem.num_nodes
    held = Counter(group.owner for group in problem.groups for _ in group.nodes)

    def order(trainer: PlannedTrainer) -> tuple[float, bool]:
        return -trainer.guaranteed_for_s, held[trainer.id] < trainer.min_nodes

    for trainer in sorted(problem.trainers, key=order):
        if trainer.guaranteed and trainer.min_nodes <= left:
            left -= trainer.min_nodes
            assert plan.grant(trainer.id), f"{trainer.id} goes without"


@settings(max_examples=scaled(60), deadline=None)
@given(problems(social=True, typed=True, terms=(EVERY_TERM,), objectives=LINEAR_OBJECTIVES))
def test_nobody_is_credited_with_more_samples_than_it_has_left(problem: Problem) -> None:
    plan, model = solve(problem), ValueModel(problem)
    by_pool = {
        node: pool
        for group, pool in zip(problem.groups, model.pools.of_group, strict=True)
        for node in group.nodes
    }
    for j, allocation in enumerate(plan.allocations):
        pools = [by_pool[node] for node in allocation.nodes]
        samples = model.samples(j, {pool: pools.count(pool) for pool in sorted(set(pools))})
        assert samples <= problem.trainers[j].remaining_samples * (1 + 1e-12)


@settings(max_examples=scaled(40), deadline=None)
@given(problems(social=True, typed=True))
def test_the_same_problem_gives_the_same_plan(problem: Problem) -> None:
    for policy in POLICIES:
        assert timeless(solve(problem, policy)) == timeless(solve(problem, policy))


@settings(max_examples=scaled(150), deadline=None)
@given(problems(social=True, typed=True), st.sampled_from(POLICIES))
def test_every_size_has_a_reason_that_its_numbers_bear_out(problem: Problem, policy: Policy) -> None:
    plan = solve(problem, policy)
    sizes = {trainer.id: len(plan.grant(trainer.id)) for trainer in problem.trainers}
    free = problem.num_nodes - sum(sizes.values())
    priority = {trainer.id: trainer.priority for trainer in problem.trainers}
    for trainer, allocation in zip(problem.trainers, plan.allocations, strict=True):
        reason, size = allocation.reason, sizes[trainer.id]
        others = {id_ for id_, nodes in sizes.items() if nodes and id_ != trainer.id}
        assert reason.text
        assert math.isfinite(reason.gain)
        assert math.isfinite(reason.cost)
        assert (reason.why is Why.AT_MAXIMUM) == (size == trainer.max_nodes)
        assert reason.other is None or reason.other in others
        match reason.why:
            case Why.STALL_NOT_WORTH_IT:
                assert reason.gain <= reason.cost or reason.gain <= 0
            case Why.OTHERS_GAIN_MORE:
                assert reason.other is not None
                assert 0 < reason.gain <= reason.cost * (1 + 1e-5)
            case Why.BELOW_MINIMUM:
                assert size == 0
                assert free < trainer.min_nodes
            case Why.BELOW_NEXT_SIZE:
                assert size > 0
                assert 0 < free < min(more for more in trainer.sizes if more > size) - size
            case Why.USER_CAP:
                assert trainer.user is not None
                used = sum(sizes[t.id] for t in problem.trainers if t.user == trainer.user)
                larger = trainer.following(size)
                assert larger is not None
                assert used + larger - size > problem.user_caps[trainer.user]
            case Why.PRIORITY:
                assert reason.other is not None
                assert priority[reason.other] > trainer.priority
                assert reason.gain > 0
            case Why.NO_IDLE_NODE:
                assert "node is idle" not in reason.text or free == 0


@settings(max_examples=scaled(150), deadline=None)
@given(st.data(), st.booleans())
def test_also_where_not_every_composition_is_looked_at_a_plan_is_within_its_bound(
    data: st.DataObject, typed: bool
) -> None:
    problem = data.draw(problems(most_trainers=3, most_nodes=6, typed=typed, terms=(EVERY_TERM, Terms())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(milp_candidates, "_MOST_OF_ALL", 0)
        plan, greedy = solve(problem), solve(problem, "greedy")
    best = best_value(ValueModel(problem))
    assert greedy.value - rounding(best) <= plan.value <= best + rounding(best) <= plan.bound + 2 * rounding(best)
    assert not plan.optimal or plan.value >= best - rounding(best)


def shares_of_the_optimum(policy: Policy, typed: bool = False) -> list[float]:
    """On 200 fixed problems whose curves are as trainers' are."""
    shares = []
    for seed in range(200):
        problem = random_problem(Random(seed), 3, 7, (EVERY_TERM,), LINEAR_OBJECTIVES, typed=typed, smooth=True)
        model = ValueModel(problem)
        runs = all(not held or model.rate(j, held) > 0 for j, held in enumerate(model.pools.held))
        if runs and (best := best_value(model)) > 1:
            shares.append(solve(problem, policy, explained=False).value / best)
    assert len(shares) > 40
    return shares


@pytest.mark.parametrize(("policy", "least"), [("milp", 0.975), ("greedy", 0.95)])
def test_also_where_not_every_composition_is_looked_at_little_is_lost(
    policy: Policy, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(milp_candidates, "_MOST_OF_ALL", 0)
    shares = shares_of_the_optimum(policy)
    assert max(shares) <= 1 + 1e-7
    assert np.mean(shares) >= least


@pytest.mark.parametrize("typed", [False, True])
def test_larger_problems_are_solved_no_worse_than_greedily(typed: bool) -> None:
    for seed in range(8):
        drawn = random_problem(Random(seed), 20, 80, (EVERY_TERM,), typed=typed, smooth=True)
        problem = replace(drawn, time_limit_s=1.0, gap=0.01)
        greedy, milp = solve(problem, "greedy"), solve(problem)
        assert milp.value >= greedy.value - rounding(greedy.value)
        assert milp.bound >= milp.value


@settings(max_examples=scaled(80), deadline=None)
@given(problem=problems(), random=st.randoms(use_true_random=True), policy=st.sampled_from(POLICIES))
def test_which_nodes_are_preferred_changes_names_and_never_counts(
    problem: Problem, random: Random, policy: Policy
) -> None:
    """`solve` itself verifies the plan of any preference, node by node."""
    mixed = replace(
        problem,
        groups=tuple(
            replace(group, nodes=tuple(random.sample(group.nodes, len(group.nodes)))) for group in problem.groups
        ),
    )
    one, other = (solve(posed, policy) for posed in (problem, mixed))
    assert (other.value, other.bound) == (one.value, one.bound)
    type_of = {node: group.node_type for group in problem.groups for node in group.nodes}
    for before, after in zip(one.allocations, other.allocations, strict=True):
        counts = (sorted(type_of[node] for node in allocation.nodes) for allocation in (before, after))
        assert next(counts) == next(counts)
        mine = mixed.held[after.trainer]
        kept = [node for node in mine if node in after.nodes]
        # Its own come first, and in the order of preference within each group.
        assert list(after.nodes[: len(kept)]) == kept
