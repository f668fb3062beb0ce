"""Benches of parallel training do not break unseen: short runs, and tables of all their cases."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benches."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_no_layout_is_measured_faster_than_its_prediction(bench: Any, tmp_path: Path) -> None:
    """As layers sleep for at least as long as they should, whatever else takes time."""
    pipeline, file = bench("pipeline"), tmp_path / "figures.json"
    pipeline.main(workers=[2], only=[pipeline.Part.LAYOUTS], forward_ms=1, steps=1, json_file=file)
    figures = json.loads(file.read_text())["layouts"]
    assert {one["case"]["num_replicas"] for one in figures} == {1, 2}
    assert len({one["case"]["schedule"] for one in figures}) == 6
    assert all(one["step_s"] > 0.99 * one["case"]["predicted_s"] for one in figures)


def test_every_case_has_its_place_in_a_table(bench: Any) -> None:
    pipeline, cases = bench("pipeline"), bench("pipelining.cases")
    rows = {}
    for part in pipeline.Part:
        found = list(pipeline.CASES[part](4, lambda *sizes, **options: cases.Case(*sizes, **options)))
        seen = cases.Seen([0.0], [100.0], [1.0])
        rows[part] = pipeline.TABLES[part]([cases.figures_of(case, [seen] * case.num_ranks) for case in found])
        assert len(found) == {"jitter": 1.5, "torch": 2}.get(part, 1) * rows[part].row_count
    assert all(table.row_count for table in rows.values())


def test_all_reduces_are_counted_and_right(bench: Any, tmp_path: Path) -> None:
    allreduce, file = bench("allreduce"), tmp_path / "figures.json"
    allreduce.main(ranks=[4], latency_ms=[0.1], megabytes_per_s=500, rounds=1, json_file=file)
    assert [one["steps"] for one in json.loads(file.read_text())] == [6, 4, 0, 0] * 2
