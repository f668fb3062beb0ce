"""Benchmarks still run: short runs, and tables with all of their cases."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the benches."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_no_layout_is_measured_faster_than_its_prediction(bench: Any, tmp_path: Path) -> None:
    """Holds on any machine: layers sleep for at least as long as their predicted time, whatever else takes
    time."""
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


def test_fused_loops_are_timed_beside_torchs_and_keep_less(bench: Any, tmp_path: Path) -> None:
    rnn, file = bench("rnn"), tmp_path / "figures.json"
    rnn.main(threads=[1], hidden=[512], rounds=1, most_steps=6, compiled=False, json_file=file)
    figures = json.loads(file.read_text())
    assert [(one["case"]["part"], one["case"]["cell"]) for one in figures] == [
        *(("forward", "lstm"), ("forward", "gru")),
        *(("training", "lstm"), ("training", "gru")),
    ]
    assert all(seconds > 0 for one in figures for seconds in [*one["least_s"].values(), one["limit_s"]])
    for one in (figures[0], figures[2]):
        assert one["bytes_of"]["paper"] < one["bytes_of"]["fused"] < one["bytes_of"]["without oneDNN"]


def test_bytes_of_grids_are_counted_and_right(bench: Any, tmp_path: Path) -> None:
    tensor, file = bench("tensor"), tmp_path / "figures.json"
    for keep in (False, True):
        tensor.main([72], [72], [100.0], latency_ms=0.1, keep=keep, rounds=1, json_file=file)
        figures = json.loads(file.read_text())
        assert [one["ranks"] for one in figures] == [2, 8, 4, 9, 8, 8, 64, 64, 64, 64]
        assert all(one["right"] for one in figures)
        assert all(one["step_ms"] is None or one["step_ms"] > 0 for one in figures)


def test_rounds_of_map_reduce_are_counted_and_outlive_kills(bench: Any, tmp_path: Path) -> None:
    mapreduce, file = bench("mapreduce"), tmp_path / "figures.json"
    parts = [mapreduce.Part.BYTES, mapreduce.Part.KILLS]
    mapreduce.main(only=parts, mappers=[1, 2], map_ms=1.0, rounds=1, json_file=file)
    figures = json.loads(file.read_text())
    least = [one["(mappers - 1) x weights, MB"] for one in figures["bytes"]]
    assert all(a <= one["MB sent"] < 1.1 * a + 1e-9 for a, one in zip(least, figures["bytes"], strict=True))
    assert [one["killed"] for one in figures["kills"]] == [0, 1, 2]
    # What a mapper delivered before it was killed counts: up to 8 of the 32 blocks.
    assert all(one["blocks mapped by survivors"] >= 32 - 8 * one["killed"] for one in figures["kills"])


def test_images_are_read_by_both_readers(bench: Any, tmp_path: Path) -> None:
    reading = bench("reading")
    reading.write_images(tmp_path, 70)
    assert min(reading.ours(tmp_path, 0), reading.plain(tmp_path, 0)) > 0


@pytest.mark.soak
def test_rounds_are_measured(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(BENCH))  # for Spark's processes
    mapreduce, file = bench("mapreduce"), tmp_path / "figures.json"
    mapreduce.main(only=[mapreduce.Part.ROUNDS], mappers=[1, 2], map_ms=1.0, rounds=1, json_file=file)
    figures = json.loads(file.read_text())
    # Maps sleep for at least their time, whatever else takes time; without Java there is no Spark to measure.
    assert [one["mappers"] for one in figures["rounds"]] == [1, 2]
    assert all(0 < one["share of ideal"] <= 1 for one in figures["rounds"])
    assert all(one["Spark rounds/s"] is None or one["Spark rounds/s"] > 0 for one in figures["rounds"])


def test_prepared_blocks_and_digits_are_measured(bench: Any, tmp_path: Path) -> None:
    mapreduce, file = bench("mapreduce"), tmp_path / "figures.json"
    mapreduce.main(only=[mapreduce.Part.PREPARED, mapreduce.Part.DIGITS], seeds=1, epochs=2, json_file=file)
    figures = json.loads(file.read_text())
    assert [one["layer"] for one in figures["prepared"]] == [
        *("64-256", "256-128", "128-30"),
        *("784-1000", "1000-500", "500-250", "250-30"),
    ]
    assert [one["MB kept"] > 0 for one in figures["prepared"]] == [False, True, True, False, True, True, True]
    assert [one["begins from"] for one in figures["digits"]] == ["stack", "random weights"]
    assert figures["digits"][0]["plain loop has its bits"] is True
    assert all(0 < one["accuracy"] <= 1 and one["reconstruction_mse"] > 0 for one in figures["digits"])


def test_mistakes_are_made_and_told_with_what_to_do(bench: Any, tmp_path: Path) -> None:
    mistakes, file = bench("mistakes"), tmp_path / "figures.json"
    mistakes.main(only=["unknown field", "DataLoader"], json_file=file)
    unknown, loader = json.loads(file.read_text())
    assert "did you mean `global_batch`?" in unknown["message"]
    assert "the data set is a DataLoader: give the data set in it" in loader["message"]
    assert loader["seconds"] > 0 < loader["cpu_s"]
    assert (unknown["status"], loader["status"]) == (1, 1)


def test_offloaded_steps_are_timed_beside_those_on_the_device(bench: Any) -> None:
    offload, device = bench("offload"), torch.device("cpu")
    figures = offload.measure(24_000, 1, device)
    assert figures.step_s.keys() == {"on the device", "offloaded", "one after the other"}
    assert all(seconds > 0 for seconds in (*figures.step_s.values(), figures.link_s))
    assert offload.table([figures], device).row_count == 1


def test_what_is_measured_on_a_gpu_is_tried_on_the_cpu(bench: Any, tmp_path: Path) -> None:
    gpu, file = bench("gpu"), tmp_path / "figures.json"
    parts = [gpu.Part.GENERATIONS, gpu.Part.MEMORY, gpu.Part.OFFLOAD]
    gpu.main(only=parts, cpu=True, json_file=file)
    generations, memory, offload = json.loads(file.read_text())
    (counted,) = generations["figures"]
    assert counted["last"]["threads"] <= counted["first"]["threads"]
    assert counted["last"]["groups"] == 0
    assert memory["figures"][0]["found"] == 32
    assert offload["figures"][0]["figures"]
    assert [generations["reason"], memory["reason"], offload["reason"]] == [""] * 3


def test_a_part_that_takes_too_long_is_ended_and_told(bench: Any) -> None:
    gpu = bench("gpu")
    outcome = gpu.run(gpu.Part.START, 1.0, cpu=True)
    assert outcome.reason.startswith("not ended within 1 s")
    assert gpu.run(gpu.Part.START, 0.0, cpu=True).reason == "skipped: no time is left"


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_without_a_gpu_one_line_says_what_is_missing(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gpu = bench("gpu")
    with pytest.raises(typer.Exit) as ended:
        gpu.main()
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_became_of_gpus_that_jobs_left_is_told_in_shares(bench: Any) -> None:
    jobs, conditions, judged = (
        bench("shared_nodes.jobs"),
        bench("shared_nodes.conditions"),
        bench("shared_nodes.judged"),
    )
    arrivals = jobs.draw(seed=1, count=40, nodes=8, gpus=4, gap_s=10.0, run_s=20.0)
    assert arrivals == jobs.draw(seed=1, count=40, nodes=8, gpus=4, gap_s=10.0, run_s=20.0)
    assert {arrival.nodes for arrival in arrivals} == {1, 2, 3}
    assert {arrival.gpus for arrival in arrivals} == {1, 2, 3, 4}
    parts = {"trained": 80.0, "stalled": 10.0, "start_up": 20.0, "late": 5.0, "unwanted": 0.0, "idle": 115.0}
    filled = judged.Outcome("filled", [1.0, 2.0, 9.0], {"all": 150.0, "foreground": 30.0, **parts})
    assert (filled.used_share("trained"), filled.used_share("trained", "stalled")) == (0.8, 0.9)
    waits, uses = conditions.tables([judged.Outcome("sleepers", [1.0]), filled])
    assert (waits.row_count, uses.row_count) == (2, 15)
