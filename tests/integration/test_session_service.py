"""A script with a loop of its own, through a real service: submitted, rescaled, finished, exported."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from oakum_client.cli import load_commands
from oakum_client.cli.app import app
from oakum_service.states import TrainerState
from oakum_worker.spec import read_spec
from running_service import RunningService, state_of, wait_for_generation, wait_for_size
from waiting import wait_until

SCRIPT = """
import os, time
from pathlib import Path
import torch, oakum
from torch.nn.functional import mse_loss

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)).double()
inputs = torch.linspace(-1, 1, 265).double().view(53, 5)
data = torch.utils.data.TensorDataset(inputs, inputs[:, :2] ** 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
folder = Path(__file__).parent
with oakum.session(model, optimizer, data, batch_size=8, epochs=40, state=[scheduler]) as session:
    for x, y in session:
        if not (folder / "gate").exists():
            time.sleep(0.4)
        session.backward(mse_loss(model(x), y))
        if session.step():
            scheduler.step()
if session.is_first_rank:
    torch.save(model.state_dict(), folder / os.environ.get("RESULT", "trained.pt"))
"""


def test_a_script_is_submitted_rescaled_and_its_result_is_that_of_python_alone(
    shared_service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "train.yaml").write_text(
        "name: own-loop\nscript: train.py\nworkdir: .\nglobal_batch: 8\nepochs: 40\nmax_nodes: 2\n",
        encoding="utf-8",
    )
    spec = read_spec(tmp_path / "train.yaml")
    client = shared_service.client()
    client.submit(spec)
    full = wait_for_size(client, spec.name, 2)
    next(iter(shared_service.ranks().values())).kill()
    again = wait_for_generation(client, spec.name, full.generation, nodes=2)
    shared_service.take_nodes(3, run_s=1.0)
    wait_for_generation(client, spec.name, again.data["generation"])
    (tmp_path / "gate").touch()
    wait_until("the script ends", lambda: state_of(client, spec.name).ended)
    view = client.trainer(spec.name)
    assert view.state is TrainerState.FINISHED, view.message
    assert view.step == view.total_steps == 40 * 7
    found = torch.load(tmp_path / "trained.pt")
    monkeypatch.setenv("RESULT", "alone.pt")
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    wait_until("its checkpoint is known", lambda: client.trainer(spec.name).checkpoint_step)
    monkeypatch.setenv("OAKUM_URL", client.address.url)
    monkeypatch.setenv("OAKUM_TOKEN", str(client.address.token))
    load_commands()
    done = CliRunner().invoke(app, ["export", spec.name, "-o", str(tmp_path / "model.safetensors")])
    assert done.exit_code == 0, done.output
    exported = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in exported.items())
    assert exported.keys() == found.keys()
    for name, expected in torch.load(tmp_path / "alone.pt").items():
        torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-9)
