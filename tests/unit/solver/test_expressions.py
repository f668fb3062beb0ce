"""What a formula may say, and what it is worth."""

import math
import pickle

import numpy as np
import pytest

from cells import each
from oakum_solver.errors import ProblemError
from oakum_solver.expressions import ALLOWED, MAX_CHARACTERS, QUANTITIES, compile_formula, evaluate, names_in
from oakum_solver.objectives import Expression


def result(source: str, **quantities: float) -> float:
    return float(evaluate(compile_formula(source), quantities))


@each(
    ("source", "expected"),
    [
        ("1 + 2 * 3 - 4 / 8", 6.5),
        ("(1 + 2) * .5e1", 15.0),
        ("-samples ** 2", -9.0),
        ("samples ** -0.5 * sqrt(samples)", 1.0),
        ("samples ** (1 / 2) - sqrt(samples)", 0.0),
        ("1 if samples > 2 else 2 if samples > 1 else 3", 1.0),
        ("1 if samples < 2 else 2 if samples <= 3 else 3", 2.0),
        ("(samples >= 3) + (samples == 3) - (samples != 3)", 2.0),
        ("-(samples > 1)", -1.0),
        ("5 if 0 else 6", 6.0),
        ("max(1, samples, 2) + min(samples, 7)", 6.0),
        ("clip(samples, 4, 5) + clip(samples, 0, 2) + clip(samples, 0, 5)", 9.0),
        ("abs(-samples) + log(exp(samples)) + log1p(0)", 6.0),
        ("1 if samples / 0 > 5 else 0", 1.0),
    ],
)
def test_a_formula_is_worth_what_it_says(source: str, expected: float) -> None:
    assert result(source, samples=3.0) == pytest.approx(expected)


def test_a_formula_is_evaluated_cell_by_cell() -> None:
    program = compile_formula("samples if nodes > 1 else -weight")
    samples, nodes, weight = np.array([[5.0, 6.0]]), np.array([[1.0, 2.0]]), np.array([[3.0], [4.0]])
    table = evaluate(program, {"samples": samples, "nodes": nodes, "weight": weight})
    np.testing.assert_array_equal(table, [[-3, 6], [-4, 6]])


def test_what_is_not_defined_is_not_finite() -> None:
    assert math.isnan(result("log(-1)"))
    assert result("1 / 0") == math.inf
    assert math.isnan(result("max(0, sqrt(samples))", samples=-1.0))


@each(
    ("source", "column", "complaint"),
    [
        ("samples + wieght", 11, "'wieght' is no quantity"),
        ("2 * open(1)", 5, "'open' is no function"),
        ("max(samples)", 1, "max takes at least 2 arguments and is given 1"),
        ("1 + clip(samples, 1)", 5, "clip takes 3 arguments and is given 2"),
        ("max(*samples, 1)", 5, "'*samples' is not allowed"),
        ("log(samples)(1)", 1, "'log(samples)(1)' is not allowed"),
        ("max(samples, key=1)", 17, "'=1)' is not expected"),
        ("samples.real", 8, "'.real' is not expected"),
        ("samples[0]", 8, "'[0]' is not expected"),
        ("'samples'", 1, "\"'samples'\" is not expected"),
        ("lambda: 1", 7, "': 1' is not expected"),
        ("(samples for samples in nodes)", 1, "'(samples for samples in nodes)' is not allowed"),
        ("(samples, nodes)", 1, "'(samples, nodes)' is not allowed"),
        ("samples and nodes", 1, "'samples and nodes' is not allowed"),
        ("not samples", 1, "'not samples' is not allowed"),
        ("samples is nodes", 1, "'samples is nodes' is not allowed"),
        ("1 + +samples", 5, "'+samples' is not allowed"),
        ("samples // 2", 1, "'samples // 2' is not allowed"),
        ("samples % 2", 9, "'% 2' is not expected"),
        ("1 < samples < 2", 1, "'1 < samples < 2' compares more than two things at once"),
        ("samples ** nodes", 12, "the exponent 'nodes' is not a constant from -8 to 8"),
        ("samples ** 9", 12, "the exponent '9' is not a constant from -8 to 8"),
        ("samples ** (1 / 0)", 13, "the exponent '1 / 0' is not a constant from -8 to 8"),
        ("1 + 1e999", 5, "'1e999' is not a finite number"),
        ("9" * 400, 1, f"'{'9' * 400}' is not a finite number"),
        ("1 + True", 5, "'True' is not a finite number"),
        ("1j", 1, "'1j' is not expected"),
        ("ｓamples", 1, "'ｓamples' is not expected"),
        ("samples\x00", 8, "'\\x00' is not expected"),
        ("samples nodes", 9, "invalid syntax"),
        ("samples +", 10, "it ends too early"),
        ("max(samples", 4, "'(' was never closed"),
    ],
)
def test_what_is_not_allowed_is_named_with_its_column(source: str, column: int, complaint: str) -> None:
    with pytest.raises(ProblemError) as refused:
        compile_formula(source)
    assert str(refused.value) == f"formula {source!r}, column {column}: {complaint}; expected {ALLOWED}"


@each(
    ("source", "message"),
    [
        ("", "the formula is empty: "),
        ("1" * (MAX_CHARACTERS + 1), "the formula has 501 characters: expected at most 500"),
        ("1" + "+1" * 100, r"formula '1(\+1)*' has 201 parts: expected at most 200"),
        ("-" * 499 + "1", "has 500 parts: expected at most 200"),
        ("(" * 250 + "1" + ")" * 249, "too many nested parentheses"),
    ],
)
def test_a_formula_is_bounded(source: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        compile_formula(source)


def test_the_longest_formula_is_evaluated() -> None:
    assert result("1" + "+1" * 99) == 100
    assert result("-" * 198 + "samples", samples=2.0) == 2.0


def test_a_program_knows_its_quantities() -> None:
    assert names_in(compile_formula("nodes * max(samples, nodes) if weight > 1 else 0")) == (
        "weight",
        "nodes",
        "samples",
    )


def test_every_quantity_can_be_named() -> None:
    assert [names_in(compile_formula(name)) for name in QUANTITIES] == [(name,) for name in QUANTITIES]


def test_an_expression_travels_between_processes() -> None:
    expression = Expression("max(samples, 0) ** 0.5 if nodes > 1 else 2")
    travelled = pickle.loads(pickle.dumps(expression))  # noqa: S301
    assert (travelled, travelled.program) == (expression, expression.program)
