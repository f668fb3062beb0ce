"""The choice of algorithms: dynamic programme, CBC and exhaustive search agree."""

from __future__ import annotations

import itertools
import random

import pytest

from oakum_solver.advice import layer_choosing
from oakum_solver.advice.layer_choosing import choose_algorithms
from oakum_solver.advice.layer_options import LayerChoice, LayerOption, chosen
from oakum_solver.advice.layer_programme import (
    TooManyStatesError,
    choose_by_dynamic_programme,
    choose_by_milp,
)
from oakum_solver.errors import MilpError, ProblemError

AMPLE = 10**9


def _layers(draw: random.Random) -> list[list[LayerOption]]:
    return [
        [
            LayerOption(f"a{i}", draw.randint(0, 9) * 1e-3, draw.randint(-5, 40), draw.choice((0, 0, 7, 20)))
            for i in range(draw.randint(1, 4))
        ]
        for _ in range(draw.randint(1, 4))
    ]


def _searched(layers: list[list[LayerOption]], left: int, *, shared: bool) -> float | None:
    """The least time of all combinations that fit."""
    fitting = []
    for picked in itertools.product(*layers):
        kept = sum(option.kept_bytes for option in picked)
        buffers = [option.buffer_bytes for option in picked]
        if kept + (max(buffers) if shared else sum(buffers)) <= left:
            fitting.append(sum(option.seconds for option in picked))
    return min(fitting, default=None)


def _same(choice: LayerChoice | None, expected: float | None) -> bool:
    if choice is None or expected is None:
        return choice is None and expected is None
    return choice.seconds == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_the_dynamic_programme_equals_exhaustive_search(shared: bool) -> None:
    draw, on_boundary = random.Random(5), 0
    for _ in range(5000):
        layers, left = _layers(draw), draw.randint(-10, 160)
        found = choose_by_dynamic_programme(layers, left, shared=shared)
        assert _same(found, _searched(layers, left, shared=shared)), (layers, left)
        if found is not None:
            assert found == chosen(layers, found.options, shared=shared)
            assert found.memory_bytes <= left
            on_boundary += found.memory_bytes == left
    assert on_boundary > 20


@pytest.mark.parametrize("shared", [False, True], ids=["separate", "shared"])
def test_cbc_equals_exhaustive_search(shared: bool) -> None:
    draw = random.Random(6)
    for _ in range(12):
        layers, left = _layers(draw), draw.randint(-5, 100)
        found = choose_by_milp(layers, left, shared=shared, time_limit_s=120.0)
        assert _same(found, _searched(layers, left, shared=shared)), (layers, left)
        assert found is None or found.memory_bytes <= left


def test_cbc_keeps_a_limit_of_gigabytes_to_the_byte() -> None:
    layers = [[LayerOption("fast", 1.0, 10**10 + 1), LayerOption("slow", 1.0 + 1e-3, 10**10)]] * 3
    found = choose_by_milp(layers, 3 * 10**10 + 2, time_limit_s=120.0)
    assert found is not None
    assert found.memory_bytes == 3 * 10**10 + 2


def test_a_shared_workspace_allows_what_separate_buffers_do_not() -> None:
    layers = [[LayerOption("buffered", 1.0, 0, 60), LayerOption("plain", 2.0, 0)]] * 2
    assert choose_by_dynamic_programme(layers, 100, shared=True).seconds == 2.0
    assert choose_by_dynamic_programme(layers, 100, shared=False).seconds == 3.0


def test_both_methods_are_named_when_both_have_found_the_choice() -> None:
    found = choose_algorithms([[LayerOption("one", 1.0, 10), LayerOption("two", 0.5, 20)]], 15)
    assert found.choice is not None
    assert found.choice.options == (0,)
    assert found.by == ("dynamic programme", "CBC")


def test_nothing_is_chosen_where_nothing_fits() -> None:
    assert choose_algorithms([[LayerOption("one", 1.0, 10)]], 9).choice is None


def test_a_disagreement_of_the_methods_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_choosing, "choose_by_milp", lambda *_, **__: LayerChoice((1,), 9.0, 0))
    with pytest.raises(MilpError, match="one of them is wrong"):
        choose_algorithms([[LayerOption("one", 1.0, 10)]], AMPLE)


def test_one_method_answers_where_the_other_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*_, **__):
        raise TooManyStatesError

    layers = [[LayerOption("one", 1.0, 10)]]
    monkeypatch.setattr(layer_choosing, "choose_by_dynamic_programme", gives_up)
    assert choose_algorithms(layers, AMPLE).by == ("CBC",)
    monkeypatch.undo()

    def crashes(*_, **__):
        raise MilpError("no CBC")

    monkeypatch.setattr(layer_choosing, "choose_by_milp", crashes)
    assert choose_algorithms(layers, AMPLE).by == ("dynamic programme",)


def test_a_layer_without_algorithms_is_refused() -> None:
    with pytest.raises(ProblemError, match="layer 0"):
        choose_by_dynamic_programme([[]], AMPLE)
