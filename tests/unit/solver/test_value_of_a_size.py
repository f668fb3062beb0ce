"""f_j(n), worked out by hand: the published formula, and each of the terms that are counted beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cells import each
from oakum_solver.objectives import Expression, NamedObjective, Objective
from oakum_solver.problem import PUBLISHED, Curve, NodeGroup, PlannedTrainer, Problem, Terms
from oakum_solver.size_values import size_values
from oakum_solver.value import ValueModel

CURVE = Curve(((1, 100.0), (2, 180.0), (4, 300.0)))
ALL = Terms(completion=True)


def problem(
    held: int,
    terms: Terms = ALL,
    objective: Objective = NamedObjective.THROUGHPUT,
    horizon_s: float = math.inf,
    **trainer: float,
) -> Problem:
    """One trainer that holds `held` of four nodes, looked at for 100 s."""
    settings = {"min_nodes": 1, "max_nodes": 4, "grow_stall_s": 3.0, "shrink_stall_s": 2.0, "startup_s": 10.0}
    nodes = ("n1", "n2", "n3", "n4")
    return Problem(
        trainers=(PlannedTrainer("a", CURVE, **{**settings, **trainer}),),  # type: ignore[arg-type]
        groups=(NodeGroup(nodes[:held], "a", horizon_s), NodeGroup(nodes[held:], None, horizon_s)),
        look_ahead_s=100.0,
        objective=objective,
        terms=terms,
    )


def worth(problem: Problem, nodes: int) -> float:
    """The value of a size, which the table of all sizes knows as well."""
    model = ValueModel(problem)
    value = model.value(0, {0: nodes} if nodes else {})
    if nodes <= model.largest:
        assert size_values(model)[0, nodes] == pytest.approx(value, rel=1e-12, abs=1e-9)
    return value


@each(
    ("held", "nodes", "value"),
    [
        (2, 2, 100 * 180),
        (2, 4, 100 * 300 - 3 * 180),
        (2, 1, 100 * 100 - 2 * 180),
        (2, 0, -2 * 180),
        (0, 1, 100 * 100),
        (0, 4, 100 * 300),
        (0, 0, 0),
        (3, 4, 100 * 300 - 3 * 240),
    ],
)
def test_the_published_formula(held: int, nodes: int, value: float) -> None:
    """T S(n) - r up or T S(n) - r dw, whatever start-ups, horizons and ends there are."""
    asked = problem(held, PUBLISHED, horizon_s=5.0, remaining_samples=1.0)
    assert worth(asked, nodes) == pytest.approx(value)


def test_in_the_published_formula_a_trainer_below_its_minimum_has_no_rate_to_lose() -> None:
    below = problem(held=1, terms=PUBLISHED, min_nodes=2)
    assert worth(below, 0) == 0.0
    assert worth(below, 2) == 100 * 180


def test_staying_costs_nothing() -> None:
    assert worth(problem(held=2), 2) == 100 * 180


def test_growing_runs_on_while_nodes_start_up_and_pays_the_stall_at_the_new_rate() -> None:
    assert worth(problem(held=2), 4) == 100 * 180 + 90 * (300 - 180) - 3 * 300


def test_shrinking_pays_its_stall_at_the_new_rate() -> None:
    assert worth(problem(held=2), 1) == 100 * 100 - 2 * 100


def test_giving_up_every_node_costs_no_stall_for_nothing_is_left_to_stand_still() -> None:
    assert worth(problem(held=2), 0) == 0.0


def test_starting_from_nothing_pays_the_start_up_and_a_stall() -> None:
    assert worth(problem(held=0), 1) == 90 * 100 - 3 * 100


def test_a_start_up_longer_than_the_look_ahead_leaves_only_the_stall() -> None:
    assert worth(problem(held=0, startup_s=500.0), 4) == -3 * 300


def test_a_trainer_below_its_minimum_has_no_rate_to_lose() -> None:
    below = problem(held=1, min_nodes=2)
    assert worth(below, 0) == 0.0
    assert worth(below, 2) == 90 * 180 - 3 * 180


STAYS_S = 100 * (1 - math.exp(-1))
"""L and A of nodes whose holes last 100 s in the mean, over 100 s, with 10 s of start-up."""
JOINED_S = 100 * (math.exp(-0.1) - math.exp(-1))


@each(
    ("nodes", "value"),
    [
        (2, 180 * STAYS_S),
        (4, 180 * STAYS_S + 120 * JOINED_S - 3 * 300),
        (1, 180 * STAYS_S - 80 * STAYS_S - 2 * 100),
        (0, 0.0),
    ],
)
def test_gains_end_where_the_holes_are_expected_to_end(nodes: int, value: float) -> None:
    assert worth(problem(held=2, horizon_s=100.0), nodes) == pytest.approx(value)


def test_a_trainer_gains_nothing_after_its_last_sample() -> None:
    terms = Terms(completion=True)
    assert worth(problem(2, terms, remaining_samples=15e3), 2) == 15e3
    assert worth(problem(2, terms, remaining_samples=15e3), 4) == 15e3
    assert worth(problem(2, terms, remaining_samples=15e3), 1) == 9800


@each(
    ("without", "nodes", "value"),
    [
        ("startup", 4, 180 * STAYS_S + 120 * STAYS_S - 3 * 300),
        ("new_rate", 4, 180 * STAYS_S + 120 * JOINED_S - 3 * 180),
        ("new_rate", 1, 100 * STAYS_S - 2 * 180),
        ("new_rate", 0, -2 * 180),
        ("horizons", 4, 100 * 180 + 90 * 120 - 3 * 300),
        ("horizons", 1, 100 * 100 - 2 * 100),
        ("departures", 4, 180 * STAYS_S + 120 * JOINED_S - 3 * 300),
    ],
)
def test_each_term_can_be_left_out(without: str, nodes: int, value: float) -> None:
    terms = replace(ALL, **{without: False})
    assert worth(problem(2, terms, horizon_s=100.0), nodes) == pytest.approx(value)


def test_without_completion_a_trainer_goes_on_beyond_its_last_sample() -> None:
    assert worth(problem(2, Terms(), remaining_samples=15e3), 2) == 18e3


def test_the_published_terms_are_none_of_ours_and_by_default_all_but_completion_count() -> None:
    assert Terms(*[False] * 5) == PUBLISHED
    assert Terms(*[True] * 4, completion=False) == Terms()


def test_speedup_counts_in_units_of_the_rate_on_one_node() -> None:
    assert worth(problem(held=2, objective=NamedObjective.SPEEDUP), 2) == pytest.approx(100 * 1.8)


def test_weighted_counts_in_units_of_the_rate_at_the_maximum() -> None:
    assert worth(problem(held=2, objective=NamedObjective.WEIGHTED), 2) == pytest.approx(100 * 180 / 300)


def test_an_expression_sees_samples_and_nodes() -> None:
    assert worth(problem(held=2, objective=Expression("samples / 10 - nodes * nodes")), 2) == 1800 - 4


def test_speedup_of_a_curve_that_is_flat_at_zero_first_takes_its_first_rate_per_node() -> None:
    trainer = PlannedTrainer("a", Curve(((2, 0.0), (4, 40.0))), max_nodes=4, startup_s=0.0)
    asked = Problem((trainer,), (NodeGroup(("n1",)),), 100.0, objective=NamedObjective.SPEEDUP, terms=PUBLISHED)
    assert ValueModel(asked).value(0, {0: 4}) == pytest.approx(100 * 4.0)


def test_a_weight_multiplies_the_value() -> None:
    assert worth(problem(held=2, weight=2.5), 2) == 2.5 * 100 * 180


def test_allowed_are_zero_and_the_minimum_up_to_the_maximum_or_the_nodes_there_are() -> None:
    def allowed(min_nodes: int, max_nodes: int, num_nodes: int) -> list[int]:
        trainer = PlannedTrainer("a", CURVE, min_nodes, max_nodes)
        nodes = tuple(f"n{i}" for i in range(num_nodes))
        values = size_values(ValueModel(Problem((trainer,), (NodeGroup(nodes),))))
        return np.flatnonzero(np.isfinite(values[0])).tolist()

    assert allowed(2, 8, num_nodes=4) == [0, 2, 3, 4]
    assert allowed(2, 3, num_nodes=4) == [0, 2, 3]
    assert allowed(2, 8, num_nodes=1) == [0]


def test_a_problem_without_trainers_or_nodes_has_values_of_nothing() -> None:
    assert size_values(ValueModel(Problem((), (NodeGroup(("n1",)),)))).size == 0
    assert size_values(ValueModel(Problem((PlannedTrainer("a", CURVE),), ()))).tolist() == [[0.0]]
