"""A script with a `Trainer` of Hugging Face through a real service: a rank is killed, the model comes out."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from oakum_client.cli import load_commands
from oakum_client.cli.app import app
from oakum_service.states import TrainerState
from oakum_worker.spec import read_spec
from running_service import RunningService, state_of, wait_for_generation, wait_for_size
from waiting import wait_until

pytestmark = pytest.mark.needs("hugging-face")
SCRIPT = """
import os, sys, time
from pathlib import Path

sys.path.append({support!r})
from oakum.hugging_face import Trainer
from tiny_language_model import Sentences, loss_of_words, tiny_model
from transformers import TrainingArguments

folder = Path(__file__).parent


def loss(*given, **named):
    if not (folder / "gate").exists():
        time.sleep(2.0)
    return loss_of_words(*given, **named)


arguments = TrainingArguments(
    output_dir=str(folder / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=2,
    num_train_epochs=6, learning_rate=0.01, report_to="none", use_cpu=True, seed=3, disable_tqdm=True,
)
trainer = Trainer(tiny_model(dropout=0.2), arguments, train_dataset=Sentences(), compute_loss_func=loss)
trainer.train()
trainer.save_model(str(folder / os.environ.get("RESULT", "trained")))
"""


def test_a_trainer_is_submitted_loses_a_rank_and_ends_as_alone(
    shared_service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks of the other libraries differ in their adapters, which `test_adapters` shows, and would import for
    seconds."""
    from transformers import AutoModelForCausalLM

    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "tune.py").write_text(SCRIPT.format(support=support), encoding="utf-8")
    (tmp_path / "tune.yaml").write_text(
        "name: tune\nscript: tune.py\nworkdir: .\nseed: 3\nglobal_batch: 8\nepochs: 6\nmax_nodes: 2\n",
        encoding="utf-8",
    )
    spec = read_spec(tmp_path / "tune.yaml")
    client = shared_service.client()
    client.submit(spec)
    full = wait_for_size(client, spec.name, 2)
    next(iter(shared_service.ranks().values())).kill()
    wait_for_generation(client, spec.name, full.generation)
    (tmp_path / "gate").touch()
    wait_until("the script ends", lambda: state_of(client, spec.name).ended)
    view = client.trainer(spec.name)
    assert view.state is TrainerState.FINISHED, view.message
    assert view.step == view.total_steps == 6 * 7
    wait_until("its checkpoint is known", lambda: client.trainer(spec.name).checkpoint_step)
    monkeypatch.setenv("RESULT", "alone")
    runpy.run_path(str(tmp_path / "tune.py"), run_name="__main__")
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    load_commands()
    for times in (1, 2):
        force = ["--force"] * (times - 1)
        done = CliRunner().invoke(app, ["export", spec.name, "-o", str(tmp_path / "exported"), *force])
        assert done.exit_code == 0, done.output
    exported, trained, alone = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float64)
        for name in ("exported", "trained", "alone")
    )
    configs = [{**model.config.to_dict(), "_name_or_path": ""} for model in (exported, trained)]
    assert configs[0] == configs[1]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "exported").dtype == torch.float64
    for name, tensor in trained.state_dict().items():
        assert torch.equal(exported.state_dict()[name], tensor)
        torch.testing.assert_close(tensor, alone.state_dict()[name], rtol=1e-9, atol=1e-9)


def test_names_of_files_in_a_checkpoint_lead_nowhere_else(tmp_path: Path) -> None:
    from torch import nn

    from oakum_worker.checkpoint.durable import DurableCheckpoints
    from oakum_worker.checkpoint.model_folder import export_model_folder

    files = {"files": json.dumps({"../../stolen.json": "{}"})}
    state = {"model": nn.Linear(2, 2).state_dict(), "parts": {"task.state.hugging_face": files}}
    DurableCheckpoints(tmp_path / "checkpoints", keep=1).save(state, 3)
    (tmp_path / "out").mkdir()
    done = export_model_folder(tmp_path / "checkpoints", tmp_path / "out" / "model")
    assert (done.step, done.num_tensors) == (3, 2)
    assert {path.name for path in (tmp_path / "out").rglob("*.*")} == {"model.safetensors", "stolen.json"}
    assert (tmp_path / "out" / "model" / "stolen.json").exists()


def test_a_trainer_of_something_else_is_told_to_be_exported_as_a_file(tmp_path: Path) -> None:
    from torch import nn

    from oakum_worker.checkpoint.durable import DurableCheckpoints
    from oakum_worker.checkpoint.model_folder import export_model_folder
    from oakum_worker.errors import CheckpointError

    DurableCheckpoints(tmp_path, keep=1).save({"model": nn.Linear(2, 2).state_dict(), "parts": {}}, 3)
    with pytest.raises(CheckpointError, match=r"ends in \.safetensors"):
        export_model_folder(tmp_path, tmp_path / "model")
    assert not (tmp_path / "model").exists()
