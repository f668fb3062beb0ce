"""`oakum profile layout`: what a pipeline trainer would do with each number of nodes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_worker.__main__ import app as worker_app

load_commands()

TASK = """
import torch
from oakum_worker.chain import Chain
from oakum_worker.task import Task

def task():
    layers = [torch.nn.Linear(64, 64) for _ in range(6)]
    model = torch.nn.Sequential(*layers)
    data = torch.utils.data.TensorDataset(torch.ones(40, 64))
    chain = Chain(layers, inputs=lambda batch: batch[0], loss=lambda output, batch: output.square().mean())
    return Task(model=model, dataset=data, optimizer=torch.optim.SGD(model.parameters()), loss=chain, chain=chain)

def unchained():
    built = task()
    built.chain = None
    return built

def unnamed():
    built = task()
    built.chain = Chain(built.chain.layers[:5], built.chain.inputs, built.chain.loss)
    return built

def functional():
    built = task()
    built.chain = Chain([*built.chain.layers, torch.tanh], built.chain.inputs, built.chain.loss)
    return built

class Listing(torch.nn.Linear):
    def forward(self, values):
        return [super().forward(values)]

def listing():
    built = task()
    layers = [Listing(64, 64), *built.chain.layers]
    model = torch.nn.Sequential(*layers)
    chain = Chain(layers, built.chain.inputs, built.chain.loss)
    sgd = torch.optim.SGD(model.parameters())
    return Task(model=model, dataset=built.dataset, optimizer=sgd, loss=chain, chain=chain)
"""
LAYER_BYTES = (64 * 64 + 64) * 4


def write_spec(folder: Path, entrypoint: str = "task", **pipeline: Any) -> str:
    (folder / "layered_task.py").write_text(TASK)
    spec = {
        "name": "layered",
        "entrypoint": f"layered_task:{entrypoint}",
        "global_batch": 16,
        "epochs": 1,
        "max_nodes": 4,
        "parallel": {"pipeline": pipeline},
    }
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return str(path)


def layouts(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run(["profile", "layout", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["layouts"]
    return found


def test_each_number_of_nodes_has_its_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path, stages=2, schedule="message-driven")
    found = layouts(capsys, spec)
    assert [row["nodes"] for row in found] == [1, 2, 3, 4]
    assert [row["replicas"] * row["stages"] for row in found] == [1, 2, 2, 4]
    assert [row["schedule"] for row in found] == ["none", *["message-driven"] * 3]
    assert all(row["samples_per_s"] == pytest.approx(16 / row["step_s"]) for row in found)


def test_where_memory_is_short_the_model_is_spread(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights and gradients of all six layers do not fit, those of three do."""
    memory = 2 * 4 * LAYER_BYTES
    alone, *spread = layouts(capsys, write_spec(tmp_path), "--memory", str(memory))
    assert (alone["stages"], alone["fits"]) == (1, False)
    assert all(row["fits"] and row["stages"] > 1 and row["peak_bytes"] <= memory for row in spread)


def test_slow_links_cost_what_is_said_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path, stages=2, schedule="1f1b", micro_batch=16)
    row = layouts(capsys, spec, "--nodes", "2", "--latency-us", "500000", "--bandwidth", "1GB")[1]
    assert row["step_s"] == pytest.approx(1.0, rel=0.1)  # one message there, one back


def test_the_table_names_the_fastest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "layout", write_spec(tmp_path, stages=2, schedule="1f1b")]) == 0
    table, kinds, assumed = capsys.readouterr().out.split("\n\n")
    heading, *rows = table.splitlines()
    machine, links = assumed.splitlines()
    assert heading.split() == [
        *("nodes", "replicas", "stages", "schedule", "micro-batches", "samples/s", "peak", "memory")
    ]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4"]
    assert sum(row.endswith("*") for row in rows) == 1
    assert {"replicated", "sharded", "pipeline"} <= {line.split()[0] for line in kinds.splitlines()[1:]}
    assert machine.startswith("6 layers on cpu")
    assert links.startswith("links of 100 us and 1 GB/s")


@each(
    ("entrypoint", "options", "problem"),
    [
        ("unchained", [], "the task does not name its layers: return Task(..., chain="),
        ("unnamed", [], "5.weight, 5.bias belong to no layer of the task's chain"),
        ("functional", [], "layer 6 of the task's chain is tanh, not a torch.nn.Module: wrap it in one"),
        ("listing", [], "layer 0 of the chain (Listing) returned a list: return a tensor or a tuple of tensors"),
        ("task", ["--nodes", "65"], "layouts of 65 nodes with 1 ranks each are asked for: give at most 64 ranks"),
        ("task", ["--bandwidth", "fast"], "--bandwidth 'fast' is not a number of bytes"),
    ],
)
def test_it_says_what_is_wrong(
    entrypoint: str, options: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "layout", write_spec(tmp_path, entrypoint), *options]) != 0
    assert problem in capsys.readouterr().err


def test_where_there_is_no_torch_it_says_who_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run(["profile", "layout", write_spec(tmp_path)]) != 0
    assert "`python -m oakum_worker profile layout SPEC`" in capsys.readouterr().err


def test_the_nodes_python_has_the_same_command(tmp_path: Path) -> None:
    done = CliRunner().invoke(worker_app, ["profile", "layout", write_spec(tmp_path), "--nodes", "1", "--json"])
    assert json.loads(done.stdout)["layers"] == 6
