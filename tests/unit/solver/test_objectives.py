"""What samples are worth, against closed forms and against what an objective is for."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cells import each
from num_examples import scaled
from oakum_solver.errors import ProblemError
from oakum_solver.expressions import QUANTITIES
from oakum_solver.objectives import (
    SPARE_WORTH,
    Expression,
    NamedObjective,
    Objective,
    TrainerFacts,
    parse_objective,
    unit,
    worth,
)

DOCUMENT = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text()
FACTS_OF_100 = TrainerFacts(weight=1.0, rate_one=100.0, best_rate=420.0)
FACTS = TrainerFacts(weight=2.0, rate_one=50.0, best_rate=400.0)
OBJECTIVES = (*NamedObjective, Expression("weight * speedup + log1p(max(samples, 0)) / (1 + nodes) + waited_s"))


def value(objective: Objective, samples: float, facts: TrainerFacts = FACTS, look_ahead_s: float = 100.0) -> float:
    return float(worth(objective, facts, look_ahead_s, np.array(samples), np.array(1)))


def marginal(objective: Objective, samples: float, facts: TrainerFacts, look_ahead_s: float = 100.0) -> float:
    """The worth of one more sample at this point."""
    above, below = (value(objective, samples + step, facts, look_ahead_s) for step in (0.5, -0.5))
    return above - below


def some_facts(num_trainers: int, seed: int = 0) -> TrainerFacts:
    """Trainers of all sorts: some endless, some without deadlines, some late."""
    random = np.random.default_rng(seed)
    column = (num_trainers, 1)
    rate_one = random.uniform(1, 1e3, column)
    return TrainerFacts(
        weight=random.uniform(0, 3, column),
        rate_one=rate_one,
        best_rate=rate_one * random.uniform(1, 64, column),
        attained_samples=random.choice([0.0, 1e3, 1e7], column),
        remaining_samples=random.choice([0.0, 1e3, 1e6, math.inf], column),
        deadline_in_s=random.choice([-10.0, 0.0, 50.0, 1e4, math.inf], column),
        waited_s=random.uniform(0, 1e4, column),
        priority=random.integers(0, 3, column).astype(np.float64),
    )


def row(facts: TrainerFacts, trainer: int) -> TrainerFacts:
    return TrainerFacts(**{name: float(column[trainer, 0]) for name, column in vars(facts).items()})


facts_of_one = st.builds(
    TrainerFacts,
    weight=st.sampled_from((0.5, 1.0, 3.0)),
    rate_one=st.floats(0.1, 1e4),
    best_rate=st.floats(1e4, 1e6),
    attained_samples=st.sampled_from((0.0, 10.0, 1e9)),
    remaining_samples=st.sampled_from((0.0, 5e-324, 1e-6, 5e3, 1e12, math.inf)),
    deadline_in_s=st.sampled_from((-1e5, 0.0, 1.0, 1e3, 1e9, math.inf)),
)


def test_the_linear_objectives_are_their_closed_forms() -> None:
    facts = some_facts(num_trainers=20)
    samples = np.random.default_rng(1).uniform(-1e4, 1e6, (20, 9))
    nodes = np.arange(9)
    expected: dict[NamedObjective, NDArray[np.float64]] = {
        NamedObjective.THROUGHPUT: facts.weight * samples,
        NamedObjective.SPEEDUP: facts.weight * samples / facts.rate_one,
        NamedObjective.WEIGHTED: facts.weight * samples / facts.best_rate,
    }
    for objective, closed_form in expected.items():
        np.testing.assert_allclose(worth(objective, facts, 120.0, samples, nodes), closed_form)


@each("objective", OBJECTIVES, ids=str)
def test_a_table_holds_what_single_cells_do(objective: Objective) -> None:
    facts = some_facts(num_trainers=30)
    samples = np.random.default_rng(2).uniform(-1e4, 1e6, (30, 5))
    nodes = np.tile(np.arange(5), (30, 1))
    table = worth(objective, facts, 120.0, samples, nodes)
    cells = [
        [float(worth(objective, row(facts, j), 120.0, samples[j, m], nodes[j, m])) for m in range(5)]
        for j in range(30)
    ]
    np.testing.assert_allclose(table, cells)


@each("objective", [*OBJECTIVES, Expression("weight"), Expression("7"), Expression("nodes")], ids=str)
def test_sizes_and_trainers_broadcast(objective: Objective) -> None:
    table = worth(objective, some_facts(num_trainers=3), 120.0, np.zeros((3, 1)), np.arange(4))
    assert table.shape == (3, 4)
    table[0, 0] = 1.0


@pytest.mark.parametrize("objective", NamedObjective)
@given(facts=facts_of_one, look_ahead_s=st.sampled_from((0.0, 1e-3, 30.0, 1e5)), data=st.data())
@settings(max_examples=scaled(60))
def test_more_samples_are_never_worth_less(
    objective: NamedObjective, facts: TrainerFacts, look_ahead_s: float, data: st.DataObject
) -> None:
    samples = np.sort(data.draw(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=8)))
    values = worth(objective, facts, look_ahead_s, samples, np.ones(len(samples), dtype=np.int64))
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-9 * np.abs(values).max()).all()


@pytest.mark.parametrize("objective", [NamedObjective.FAIR_SHARE, NamedObjective.DEADLINE])
@given(facts=facts_of_one, first=st.floats(-1e9, 1e9), second=st.floats(-1e9, 1e9), share=st.floats(0, 1))
@settings(max_examples=scaled(100))
def test_a_mixture_is_worth_at_least_the_mixed_worths(
    objective: NamedObjective, facts: TrainerFacts, first: float, second: float, share: float
) -> None:
    if objective is NamedObjective.DEADLINE:
        first, second = abs(first), abs(second)
    mixture = value(objective, share * first + (1 - share) * second, facts)
    mixed = share * value(objective, first, facts) + (1 - share) * value(objective, second, facts)
    slack = 1e-9 * (1 + abs(value(objective, first, facts)) + abs(value(objective, second, facts)))
    assert mixture >= mixed - slack


def test_rates_of_zero_are_worth_nothing_and_not_undefined() -> None:
    still = TrainerFacts(weight=1.0, rate_one=0.0, best_rate=0.0, remaining_samples=5.0, deadline_in_s=9.0)
    assert [value(objective, 0.0, still) for objective in NamedObjective] == [0.0] * 5


def test_a_fair_share_is_the_logarithm_of_what_a_trainer_will_have_had() -> None:
    had = replace(FACTS, attained_samples=50.0 * 300)
    assert value(NamedObjective.FAIR_SHARE, 50.0 * 400, had) == pytest.approx(
        2 * 100 * math.log((100 + 300 + 400) / 400)
    )


def test_a_newcomers_first_sample_is_worth_the_same_by_fair_share_as_by_speedup() -> None:
    by_share = marginal(NamedObjective.FAIR_SHARE, 0.0, FACTS)
    assert by_share == pytest.approx(marginal(NamedObjective.SPEEDUP, 0.0, FACTS), rel=1e-4)


def test_a_newcomer_outbids_an_old_trainer_until_it_has_had_as_much() -> None:
    old = replace(FACTS, attained_samples=1e6)
    half_way, level, ahead = (replace(FACTS, attained_samples=had) for had in (5e5, 1e6, 2e6))
    worth_to_the_old = marginal(NamedObjective.FAIR_SHARE, 1000.0, old)
    assert marginal(NamedObjective.FAIR_SHARE, 1000.0, FACTS) > 100 * worth_to_the_old
    assert marginal(NamedObjective.FAIR_SHARE, 1000.0, half_way) > 1.9 * worth_to_the_old
    assert marginal(NamedObjective.FAIR_SHARE, 1000.0, level) == worth_to_the_old
    assert marginal(NamedObjective.FAIR_SHARE, 1000.0, ahead) < worth_to_the_old


def test_fair_shares_end_in_proportion_to_the_weights() -> None:
    """A node goes again and again to whom it is worth most."""
    had_s = np.zeros((3, 1))
    weights = np.array([[1.0], [2.0], [5.0]])
    for _ in range(800):
        facts = TrainerFacts(weight=weights, rate_one=10.0, best_rate=10.0, attained_samples=10 * had_s)
        had_s[
            np.argmax(worth(NamedObjective.FAIR_SHARE, facts, 100.0, np.array([[1000.0]]), np.array([[1]])))
        ] += 100
    np.testing.assert_allclose(had_s / had_s.sum(), weights / weights.sum(), atol=0.005)


def test_being_on_schedule_is_worth_the_look_ahead_whatever_the_schedule() -> None:
    tight = replace(FACTS, remaining_samples=1e5, deadline_in_s=300.0)
    easy = replace(FACTS, remaining_samples=1e5, deadline_in_s=1e4)
    assert value(NamedObjective.DEADLINE, 100 * 1e5 / 300, tight) == pytest.approx(2 * 100)
    assert value(NamedObjective.DEADLINE, 100 * 10.0, easy) == pytest.approx(2 * 100)
    assert value(NamedObjective.DEADLINE, 50 * 10.0, easy) == pytest.approx(2 * 50)


def test_beyond_its_schedule_a_trainer_counts_as_one_without_a_deadline() -> None:
    easy = replace(FACTS, remaining_samples=1e5, deadline_in_s=1e4)
    spare = 2 * SPARE_WORTH * 7000 / 400
    assert value(NamedObjective.DEADLINE, 1000.0 + 7000.0, easy) - 2 * 100 == pytest.approx(spare)
    assert value(NamedObjective.DEADLINE, 7000.0) == pytest.approx(spare)
    assert value(NamedObjective.DEADLINE, 7000.0, replace(FACTS, deadline_in_s=60.0)) == pytest.approx(spare)


@each("deadline_in_s", [-5.0, 0.0, 10.0])
def test_a_deadline_passed_or_out_of_reach_asks_for_the_best_rate(deadline_in_s: float) -> None:
    late = replace(FACTS, remaining_samples=1e6, deadline_in_s=deadline_in_s)
    assert value(NamedObjective.DEADLINE, 12_000.0, late) == pytest.approx(2 * 12_000 / 400)


def test_a_node_goes_to_who_can_be_on_time_before_who_is_late_before_who_has_time() -> None:
    on_time = replace(FACTS, remaining_samples=1e5, deadline_in_s=1e3)
    late = replace(on_time, deadline_in_s=-1.0)
    first, second, third = (marginal(NamedObjective.DEADLINE, 1000.0, facts) for facts in (on_time, late, FACTS))
    assert first > second > third > 0


def test_a_stall_costs_a_trainer_far_ahead_of_its_deadline_no_more_than_it_took() -> None:
    """At 1 / rho, the two seconds at its best rate would have cost eighty times the look-ahead."""
    far_ahead = replace(FACTS, remaining_samples=100.0, deadline_in_s=1e3)
    assert value(NamedObjective.DEADLINE, -2 * 400.0, far_ahead) == pytest.approx(-2 * 2)


@each("objective", OBJECTIVES, ids=str)
def test_an_objectives_text_reads_as_the_objective(objective: Objective) -> None:
    assert parse_objective(str(objective)) == objective
    assert unit(objective)


def test_an_expression_that_looks_like_an_objective_is_told_from_it() -> None:
    assert str(Expression("speedup")) == "(speedup)"
    assert parse_objective("(speedup)") == Expression("speedup") != parse_objective("speedup")


def test_a_single_quantity_is_an_expression() -> None:
    assert parse_objective(" samples ") == Expression("samples")


def test_an_unknown_objective_is_answered_with_the_known_ones_and_an_example() -> None:
    with pytest.raises(
        ProblemError, match=r"^objective 'fair-shares': expected throughput, .*, deadline, or an"
    ) as told:
        parse_objective("fair-shares")
    assert "'weight * samples / rate_one'" in str(told.value)


def test_expressions_are_equal_and_hash_by_their_text() -> None:
    assert len({Expression("weight  *\tsamples"), Expression(" weight * samples"), Expression("samples")}) == 2


def test_an_expression_sees_every_quantity() -> None:
    facts = TrainerFacts(2.0, 50.0, 400.0, 3e4, 6e4, 900.0, 70.0, 5.0)
    seen = {
        "samples": 1000.0,
        "nodes": 4.0,
        "rate": 10.0,
        "speedup": 0.2,
        "rate_one": 50.0,
        "best_rate": 400.0,
        "weight": 2.0,
        "priority": 5.0,
        "attained": 3e4,
        "remaining": 6e4,
        "deadline_in_s": 900.0,
        "waited_s": 70.0,
        "look_ahead_s": 100.0,
    }
    samples, nodes = np.array(1000.0), np.array(4)
    assert {name: float(worth(Expression(name), facts, 100.0, samples, nodes)) for name in seen} == seen


def test_an_undefined_value_names_the_trainer_the_size_and_the_quantities() -> None:
    facts = TrainerFacts(weight=np.ones((2, 1)), rate_one=1.0, best_rate=1.0, waited_s=np.array([[1.0], [0.0]]))
    samples = np.array([[1.0, 2.0], [1.0, 2.0]])
    with pytest.raises(ProblemError) as refused:
        worth(Expression("samples / waited_s"), facts, 60.0, samples, np.array([0, 8]))
    assert str(refused.value).startswith(
        "objective 'samples / waited_s' is inf for trainer 1 (counted from 0) at 0 nodes, "
        "where samples = 1, waited_s = 0: expected a finite number at every size"
    )


@each("text", ["sqrt(samples)", "1 / waited_s", "remaining", "log(attained)", "deadline_in_s"])
def test_an_expression_that_would_fail_at_the_first_stall_or_newcomer_is_refused_at_once(text: str) -> None:
    with pytest.raises(ProblemError, match=r"^tried on made-up trainers: objective '"):
        parse_objective(text)


def test_the_branch_not_taken_may_be_undefined() -> None:
    assert parse_objective("samples / waited_s if waited_s > 0 else samples")


def test_the_documented_examples_are_worth_what_is_said_of_them() -> None:
    young, frugal = (line.strip() for line in DOCUMENT.splitlines() if line.startswith("    weight * "))
    facts = replace(FACTS_OF_100, attained_samples=np.array([[0.0], [360_000.0]]))
    fading = worth(parse_objective(young), facts, 120.0, np.array([[72_000.0]]), np.array([[8]]))
    assert fading.ravel().tolist() == [720, 360]
    samples = 120 * 100 * np.array([1, 1.8, 3, 4.2])
    by_size = worth(parse_objective(frugal), FACTS_OF_100, 120.0, samples, np.array([1, 2, 4, 8]))
    np.testing.assert_allclose(by_size, [60, 96, 120, 24])
    hour = replace(FACTS_OF_100, attained_samples=360_000.0)
    second_more = marginal(NamedObjective.FAIR_SHARE, 0.0, hour, look_ahead_s=120.0) * 100
    assert second_more == pytest.approx(0.032, abs=5e-4)


def test_every_objective_and_quantity_is_documented() -> None:
    assert [name for name in (*NamedObjective, *QUANTITIES) if f"`{name}`" not in DOCUMENT] == []
