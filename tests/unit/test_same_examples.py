"""Examples hang on nothing but their test."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

_PECULIAR = range(987_000_000, 987_001_000)
_PROFILES = """
from hypothesis import settings
import conftest
print(", ".join(f"{name} {settings.get_profile(name).derandomize}" for name in ("ci", "soak", "tests")))
"""


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


def test_the_soaks_examples_are_random_on_a_ci_machine_too() -> None:
    tests = Path(__file__).parents[1]
    told = subprocess.run(
        [sys.executable, "-c", _PROFILES],
        env=os.environ
        | {"CI": "true", "PYTHONPATH": f"{tests}:{tests / 'support'}:{tests.parent / 'tools'}:{tests.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "ci True, soak False, tests True\n"
