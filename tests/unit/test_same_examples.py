"""Examples hang on nothing but their test."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

_PECULIAR = range(987_000_000, 987_001_000)


def _examples() -> list[int]:
    tried: list[int] = []

    @settings(max_examples=300, database=None)
    @given(st.integers())
    def collect(number: int) -> None:
        tried.append(number)

    collect()
    return tried


def test_the_constants_of_an_imported_module_are_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not settings().derandomize:
        pytest.skip("the examples of this profile are random")
    before = _examples()
    Path(tmp_path, "peculiar_constants.py").write_text(f"NUMBERS = {[*_PECULIAR]}\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("peculiar_constants")
    assert _examples() == before
