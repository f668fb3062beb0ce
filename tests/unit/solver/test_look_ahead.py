"""How far ahead plans look, by how long nodes are expected to stay idle."""

from __future__ import annotations

import math

import pytest

from cells import each
from oakum_solver.look_ahead import automatic_look_ahead_s
from oakum_solver.planning import PlanningRules


@each(
    ("mean_rest_s", "expected_s"),
    [
        (None, 1800.0),
        (math.inf, 1800.0),
        (50_000.0, 1800.0),
        (6000.0, 600.0),
        (900.0, 120.0),
        (120.0, 120.0),
        (20.0, 20.0),
        (0.0, 1.0),
    ],
)
def test_a_plan_looks_ahead_a_tenth_of_the_rest_of_holes(mean_rest_s: float | None, expected_s: float) -> None:
    assert automatic_look_ahead_s(mean_rest_s) == pytest.approx(expected_s)


@each(
    ("look_ahead_s", "mean_rest_s", "reason"),
    [
        (30.0, 900.0, "The plan looks 30 s ahead, as the setting look_ahead_s says."),
        (
            None,
            None,
            "The plan looks 30 min ahead: too few idle times had ended to tell how long nodes stay idle.",
        ),
        (None, math.inf, "The plan looks 30 min ahead: no idle node was expected to be taken."),
        (
            None,
            6000.0,
            "The plan looks 10 min ahead: idle nodes were expected to stay idle for another 1 h 40 min "
            "on average.",
        ),
    ],
)
def test_a_plan_says_why_it_looks_so_far_ahead(
    look_ahead_s: float | None, mean_rest_s: float | None, reason: str
) -> None:
    assert PlanningRules(look_ahead_s=look_ahead_s).look_ahead_reason(mean_rest_s) == reason
