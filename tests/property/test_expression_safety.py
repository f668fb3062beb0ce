"""Whatever text is given as an objective, the result is an objective or a `ProblemError`, at once, and no code
is run."""

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from num_examples import scaled
from oakum_solver.errors import ProblemError
from oakum_solver.expressions import MAX_CHARACTERS, QUANTITIES
from oakum_solver.objectives import Expression, NamedObjective, Objective, TrainerFacts, parse_objective, worth

FACTS = TrainerFacts(
    weight=np.array([[0.0], [1.0], [1e6]]),
    rate_one=np.array([[1e-3], [50.0], [1e6]]),
    best_rate=np.array([[1e-3], [400.0], [1e8]]),
    attained_samples=np.array([[0.0], [1e5], [1e12]]),
    remaining_samples=np.array([[0.0], [1e5], [math.inf]]),
    deadline_in_s=np.array([[-1e5], [1e3], [math.inf]]),
)
SAMPLES = np.array([-1e6, 0.0, 1e3, 1e9])
NODES = np.array([0, 0, 1, 64])
PYTHON = (
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ".",
        ":",
        "=",
        ":=",
        "+",
        "-",
        "*",
        "**",
        "/",
        "//",
        "%",
        "@",
        "<",
        "==",
        "!=",
    ),
    *(
        " if ",
        " else ",
        " for ",
        " in ",
        " lambda x: ",
        " and ",
        " not ",
        " is ",
        " await ",
        " yield ",
        "\n",
        "\\",
        "#",
    ),
    *(
        "0",
        "1e308",
        "7.",
        "0x1f",
        "1j",
        "1_0",
        "'",
        '"',
        "f'{",
        "__class__",
        "__import__('os')",
        "exec(",
        "max(",
        "log(",
    ),
    *("clip(", "min(0,", "samples", "nodes", "weight", "remaining", "deadline_in_s", "True", "None", "é", "\x00"),
)
MEANT = st.recursive(
    st.sampled_from(list(QUANTITIES)) | st.floats(0, 1e300).map(repr) | st.integers(0, 99).map(str),
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(("+", "-", "*", "/", "<", ">=", "==")), part)
        .map(" ".join)
        .map("({})".format),
        st.tuples(part, st.integers(-8, 8)).map(lambda given: f"(({given[0]}) ** {given[1]})"),
        st.tuples(part, part, part).map(lambda given: "({} if {} else {})".format(*given)),
        st.tuples(st.sampled_from(("log", "log1p", "sqrt", "exp", "abs", "-")), part).map("{0[0]}({0[1]})".format),
        st.tuples(st.sampled_from(("min", "max")), part, part).map("{0[0]}({0[1]}, {0[2]})".format),
        st.tuples(part, part, part).map("clip({0[0]}, {0[1]}, {0[2]})".format),
    ),
    max_leaves=20,
)


def read(text: str) -> Objective | str:
    """The objective, or why there is none."""
    try:
        return parse_objective(text)
    except ProblemError as refusal:
        return str(refusal)


def finite_or_refused(objective: Objective) -> bool:
    try:
        values = worth(objective, FACTS, 120.0, SAMPLES, NODES)
    except ProblemError as refusal:
        return "expected a finite number" in str(refusal)
    return values.shape == (3, 4) and bool(np.isfinite(values).all())


@given(st.text(max_size=60) | st.lists(st.sampled_from(PYTHON), max_size=120).map("".join))
@settings(max_examples=scaled(400))
def test_any_text_is_an_objective_or_refused(text: str) -> None:
    objective = read(text)
    assert objective
    if not isinstance(objective, str) or isinstance(objective, NamedObjective):
        assert read(str(objective)) == objective
        assert finite_or_refused(objective)


@given(MEANT)
@settings(max_examples=scaled(300))
def test_every_formula_of_allowed_parts_has_finite_values_or_is_refused(source: str) -> None:
    if len(source) > MAX_CHARACTERS:
        with pytest.raises(ProblemError, match="expected at most 500"):
            Expression(source)
    else:
        assert Expression(str(Expression(source))) == Expression(source)
        assert finite_or_refused(Expression(source))


@given(st.sampled_from(PYTHON), st.integers(1, MAX_CHARACTERS), st.sampled_from((*PYTHON, "")))
@settings(max_examples=scaled(200))
def test_repetition_takes_the_parser_no_time(part: str, times: int, tail: str) -> None:
    started_s = time.process_time()
    read((part * times)[: MAX_CHARACTERS - len(tail)] + tail)
    assert time.process_time() - started_s < 1
