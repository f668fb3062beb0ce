"""What is told of a plan: every number has its unit, and the sentence says whose values were added up."""

from __future__ import annotations

from cells import each
from oakum_service.api.schemas.plan_words import quality_of, unit_of, worth_of
from oakum_service.api.schemas.plans import WhatIfView
from oakum_solver.objectives import NamedObjective


@each(
    ("objective", "unit", "whose"),
    [
        ("throughput", "samples", "models"),
        ("speedup", "s of training on one node", "trainers"),
        ("weighted", "s of training at its largest size", "trainers"),
        ("fair-share", "s of training on one node (counted less the more it has trained)", "trainers"),
        ("deadline", "s on schedule", "trainers"),
        ("weight * samples", "points", "trainers"),
    ],
)
def test_a_plans_value_has_the_unit_of_its_objective(objective: str, unit: str, whose: str) -> None:
    assert unit_of(objective) == unit
    told = worth_of(objective, 1234.5, 120.0)
    assert told == f"1,234 {unit} over the next 2 min, the sum over all {whose}, each times its weight"


def test_a_look_ahead_is_told_as_exactly_as_the_value() -> None:
    for span_s in (34.4, 74.4):
        told = worth_of("speedup", span_s, span_s)
        assert f"{span_s} s of training on one node over the next {span_s} s," in told


def test_every_named_objective_has_a_unit() -> None:
    assert all(unit_of(objective) != "points" for objective in NamedObjective)


@each(
    ("bound", "optimal", "quality"),
    [
        (75.0, True, "the best possible"),
        (75.0, False, "the best possible"),
        (100.0, False, "at most 25 % below the best possible"),
        (75.0001, False, "at most 0.01 % below the best possible"),
    ],
)
def test_how_good_a_plan_is(bound: float, optimal: bool, quality: str) -> None:
    assert quality_of("speedup", 75.0, bound, optimal=optimal) == quality


def test_a_value_far_below_the_bound_is_told_beside_it() -> None:
    assert quality_of("deadline", -3.0, 30.0, optimal=False) == "the best possible is worth at most 30 s"


def test_a_plan_that_gives_nothing_is_not_called_the_best_possible() -> None:
    common = {
        "objective": "speedup",
        "value": 0.0,
        "bound": 0.0,
        "optimal": True,
        "solver": "greedy",
        "solve_s": 0.001,
    }
    view = WhatIfView(**common, num_idle=0, held=False, allocations=[])
    assert view.summary == "It gives no trainer a node."
