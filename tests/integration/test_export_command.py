"""`oakum export` of a trainer that has ended, through a real service: its nodes are not needed any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import load_file
from typer.testing import CliRunner

from oakum import Client
from oakum_client.cli import load_commands
from oakum_client.cli.app import app
from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.protocol import BestEvaluation
from oakum_worker.task import load_task
from running_service import RunningService, small_spec
from waiting import DEADLINE_S, wait_until


@pytest.fixture(scope="module")
def trained_by_a_script(_shared_service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of a trainer `small`, which a script has submitted, waited for and taken out after 30 steps."""
    address = _shared_service.client().address
    with Client(address.url, address.token) as client:
        client.submit(small_spec("small", epochs=3, max_nodes=1).model_dump(mode="json", exclude_unset=True))
        (view,) = client.wait("small", timeout_s=DEADLINE_S)
        assert (view.state, view.step) == ("finished", 30)
        assert client.series("small").points[-1].step == 30
        done = client.export("small", tmp_path_factory.mktemp("script") / "small.safetensors")
    assert done.step == 30
    return Path(done.file)


@pytest.fixture
def connected(shared_service: RunningService, monkeypatch: pytest.MonkeyPatch) -> RunningService:
    """The service that the CLI finds."""
    address = shared_service.client().address
    monkeypatch.setenv("OAKUM_URL", address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(address.token))
    monkeypatch.setenv("COLUMNS", "200")
    load_commands()
    return shared_service


def export(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["export", *arguments])


def test_the_model_is_a_file_that_others_load(
    trained_by_a_script: Path, connected: RunningService, tmp_path: Path
) -> None:
    """The same to scripts and on the command line."""
    file = tmp_path / "small.safetensors"
    done = export("small", "-o", str(file), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    model = load_task(small_spec("small")).model
    load_weights(str(connected.client().trainer("small").checkpoint_folder), model)
    for found in (load_file(file), load_file(trained_by_a_script)):
        assert found.keys() == model.state_dict().keys()
        assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    size = sum(value.nbytes for value in found.values())
    assert told == {"file": str(file), "step": 30, "tensors": len(found), "bytes": size, "exact": True}
    again = export("small", "-o", str(file))
    assert (again.exit_code, "is there already" in str(again.exception)) == (1, True)
    again = export("small", "-o", str(file), "--force", "--step", "30")
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"{file}: {len(found)} tensors, ")
    assert again.stdout.endswith(", after step 30\n")


@pytest.mark.usefixtures("trained_by_a_script", "connected")
def test_what_cannot_be_exported_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    cases = (
        (("model.bin",), "expected a name that ends in .safetensors, .pt, .pth"),
        (("nowhere/model.pt",), f"there is no folder {tmp_path}/nowhere"),
        (("model.pt", "--step", "best"), "trainer small has no best checkpoint: its spec names no metric"),
        (("model.pt", "--step", "last"), "step last: give a number of steps, or best"),
        (("model.pt", "--step", "7"), "there is no checkpoint after step 7 any more; there are: 30"),
    )
    for (name, *options), told in cases:
        done = export("small", "-o", f"{tmp_path}/{name}", *options)
        assert done.exit_code == 1, (name, options)
        assert told in str(done.exception)
        assert list(tmp_path.iterdir()) == [], (name, options)


def test_a_trainer_ends_early_and_its_best_model_is_kept_and_exported(
    connected: RunningService, tmp_path: Path
) -> None:
    client = connected.client()
    evaluate = {"every_steps": 4, "keep_best": "accuracy", "mode": "max", "patience": 3}
    client.submit(
        small_spec(
            "best", entrypoint="small_task:evaluated_task", epochs=100, min_nodes=2, max_nodes=2, evaluate=evaluate
        )
    )
    view: Any = wait_until("it ends", lambda: (v := client.trainer("best")).state.ended and v)
    assert view.state == "finished", view.message
    early = "accuracy has not risen in 3 evaluations, since 1 after step 8"
    assert view.message.startswith("finished after 20 steps, loss ")
    assert view.message.endswith(f"; it ended early: {early}")
    assert view.best == BestEvaluation(metric="accuracy", value=1.0, step=8)
    shown = CliRunner().invoke(app, ["show", "best"])
    assert "accuracy 1, step 8: `oakum export best --step best -o best.safetensors`" in shown.output
    done = export("best", "--step", "best", "-o", str(tmp_path / "b.pt"), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step"] == 8
    assert [each.step for each in client.evaluations("best")] == [4, 8, 12, 16, 20]
