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
from oakum_service.cli import load_commands
from oakum_service.cli.app import app
from oakum_worker.checkpoint.weights import load_weights
from oakum_worker.protocol import BestEvaluation
from oakum_worker.task import load_task
from running_service import RunningService, small_spec
from waiting import DEADLINE_S, wait_until


@pytest.fixture
def trained(shared_service: RunningService, monkeypatch: pytest.MonkeyPatch) -> str:
    """The checkpoint folder of a trainer `small` that has finished after 40 steps; the CLI finds its service."""
    client = shared_service.client()
    client.submit(small_spec("small", epochs=4, max_nodes=1))
    wait_until("it ends", lambda: client.trainer("small").state.ended)
    view: Any = wait_until("its checkpoint is known", lambda: (v := client.trainer("small")).checkpoint_step and v)
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    load_commands()
    return str(view.checkpoint_folder)


def export(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["export", "small", *arguments])


def test_the_model_is_a_file_that_others_load(trained: str, tmp_path: Path) -> None:
    file = tmp_path / "small.safetensors"
    done = export("-o", str(file), "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    model = load_task(small_spec("small")).model
    load_weights(trained, model)
    found = load_file(file)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], value) for name, value in model.state_dict().items())
    size = sum(value.nbytes for value in found.values())
    assert told == {"file": str(file), "step": 40, "tensors": len(found), "bytes": size}
    again = export("-o", str(file))
    assert (again.exit_code, "is there already" in str(again.exception)) == (1, True)
    again = export("-o", str(file), "--force", "--step", "40")
    assert again.exit_code == 0, again.output
    assert again.stdout.startswith(f"{file}: {len(found)} tensors, ")
    assert again.stdout.endswith(", after step 40\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("-o", "{}/model.bin"), "expected a name that ends in .safetensors, .pt, .pth"),
        (("-o", "{}/nowhere/model.pt"), "there is no folder {}/nowhere"),
        (
            ("-o", "{}/model.pt", "--step", "best"),
            "trainer small has no best checkpoint: its spec names no metric",
        ),
        (("-o", "{}/model.pt", "--step", "last"), "step last: give a number of steps, or best"),
        (("-o", "{}/model.pt", "--step", "7"), "there is no checkpoint after step 7 any more; there are: 40"),
    ],
)
def test_what_cannot_be_exported_is_told_and_leaves_nothing(
    trained: str, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    done = export(*(argument.format(tmp_path) for argument in arguments))
    assert done.exit_code == 1
    assert told.format(tmp_path) in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_ends_early_and_its_best_model_is_kept_and_exported(
    shared_service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client = shared_service.client()
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
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    monkeypatch.setenv("COLUMNS", "200")
    load_commands()
    shown = CliRunner().invoke(app, ["show", "best"])
    assert "accuracy 1, step 8: `oakum export best --step best -o best.safetensors`" in shown.output
    done = CliRunner().invoke(app, ["export", "best", "--step", "best", "-o", str(tmp_path / "b.pt"), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step"] == 8
    assert [each.step for each in client.evaluations("best")] == [4, 8, 12, 16, 20]


def test_a_script_submits_waits_and_takes_the_model_out(shared_service: RunningService, tmp_path: Path) -> None:
    address = shared_service.client().address
    with Client(address.url, address.token) as client:
        client.submit(small_spec("scripted", epochs=3, max_nodes=1).model_dump(mode="json", exclude_unset=True))
        (view,) = client.wait("scripted", timeout_s=DEADLINE_S)
        assert (view.state, view.step) == ("finished", 30)
        assert client.series("scripted").points[-1].step == 30
        done = client.export("scripted", tmp_path / "scripted.safetensors")
    assert (done.step, load_file(done.file).keys()) == (30, load_task(small_spec("x")).model.state_dict().keys())
