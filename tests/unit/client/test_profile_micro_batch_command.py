"""`oakum profile micro-batch`: the worker's measurements under the command that users know."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()

TASK = """
import torch
from oakum_worker.task import Task

def task():
    model = torch.nn.Linear(3, 2)
    data = torch.utils.data.TensorDataset(torch.ones(9, 3))
    loss = lambda model, batch: model(batch[0]).square().mean()
    return Task(model=model, dataset=data, loss=loss, optimizer=torch.optim.SGD(model.parameters()))
"""


def write_spec(folder: Path) -> Path:
    (folder / "linear_task.py").write_text(TASK)
    spec = {"name": "linear", "entrypoint": "linear_task:task", "global_batch": 4, "epochs": 1}
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def test_it_measures_and_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = write_spec(tmp_path)
    assert run(["profile", "micro-batch", str(path), "--memory", "1MiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [one["micro_batch"] for one in document["candidates"]] == [1, 2, 4]
    assert document["limit_bytes"] == 1 << 20
    assert (tmp_path / "oakum" / "micro-batch.json").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--memory", "lots"], "--memory 'lots' is not a number of bytes: give one such as 2GiB"),
        (["--memory", "9"], "not even a micro-batch of 1 fits into the memory"),
    ],
)
def test_it_says_what_is_wrong(
    options: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "micro-batch", str(write_spec(tmp_path)), "--fresh", *options]) == 1
    assert f"oakum: {problem}" in capsys.readouterr().err


def test_without_torch_it_says_where_to_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec

    def find_all_but_torch(name: str, *rest: Any) -> Any:
        return None if name == "torch" else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_all_but_torch)
    assert run(["profile", "micro-batch", str(write_spec(tmp_path))]) == 1
    assert "`python -m oakum_worker profile micro-batch SPEC`" in capsys.readouterr().err


def test_its_help_does_not_import_torch() -> None:
    code = (
        "import sys; from oakum_client.cli import load_commands; from oakum_client.cli.app import run; "
        "load_commands(); run(['profile', 'micro-batch', '--help']); sys.exit('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, "--pipeline-stages" in result.stdout) == (0, True)
