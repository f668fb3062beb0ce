"""A script with Lightning's `Trainer` through a real service: a rank is killed, and it ends as it does alone."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from oakum_service.states import TrainerState
from oakum_worker.spec import read_spec
from running_service import RunningService, state_of, wait_for_generation, wait_for_size
from waiting import wait_until

pytestmark = pytest.mark.needs("lightning")
SCRIPT = """
import json, os, sys, time
from pathlib import Path

sys.path.append({support!r})
import lightning
import torch
from lightning.pytorch.callbacks import Callback
from oakum.lightning import Trainer
from regression_loops import network
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader
from training_ranks import Points

folder = Path(__file__).parent
result = folder / os.environ.get("RESULT", "trained")


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def on_train_batch_start(self, batch, batch_idx):
        if not (folder / "gate").exists():
            time.sleep(1.0)

    def training_step(self, batch, batch_idx):
        return mse_loss(self.network(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", mse_loss(self.network(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.1)
        every_step = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return [optimizer], [
            {{"scheduler": every_step, "interval": "step"}},
            {{"scheduler": plateau, "interval": "epoch", "monitor": "val_loss"}},
        ]


class Log(Callback):
    # A file for each process: a killed one may leave half a line.
    def on_train_batch_end(self, trainer, module, *_):
        said = {{"step": trainer.global_step, "loss": trainer._loop.open.loss,
                 "rate": trainer.optimizers[0].param_groups[0]["lr"]}}
        with Path(f"{{result}}-{{os.getpid()}}.jsonl").open("a") as file:
            file.write(json.dumps(said) + "\\n")


module = Regression()
trainer = Trainer(
    accelerator="cpu", logger=False, enable_checkpointing=False, num_sanity_val_steps=0, gradient_clip_val=0.5,
    max_epochs=40, accumulate_grad_batches=3, callbacks=[Log()], enable_progress_bar=False,
)
trainer.fit(module, DataLoader(Points(), batch_size=3, shuffle=True), DataLoader(Points(), batch_size=16))
if trainer.is_global_zero:
    torch.save(module.state_dict(), f"{{result}}.pt")
"""


def told(folder: Path, result: str) -> dict[int, set[tuple[float, float]]]:
    """Step -> (loss, learning rate) as each rank told them that took the step."""
    found: dict[int, set[tuple[float, float]]] = {}
    for path in folder.glob(f"{result}-*.jsonl"):
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
            said = json.loads(line)
            found.setdefault(said["step"], set()).add((said["loss"], said["rate"]))
    return found


def test_a_lightning_trainer_is_submitted_loses_a_rank_and_ends_as_alone(
    shared_service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support = str(Path(__file__).parents[1] / "support")
    (tmp_path / "fit.py").write_text(SCRIPT.format(support=support), encoding="utf-8")
    (tmp_path / "fit.yaml").write_text(
        "name: fit\nscript: fit.py\nworkdir: .\nglobal_batch: 9\nepochs: 40\nmax_nodes: 3\n", encoding="utf-8"
    )
    spec = read_spec(tmp_path / "fit.yaml")
    client = shared_service.client()
    client.submit(spec)
    full = wait_for_size(client, spec.name, 3)
    next(iter(shared_service.ranks().values())).kill()
    wait_for_generation(client, spec.name, full.generation)
    (tmp_path / "gate").touch()
    wait_until("the script ends", lambda: state_of(client, spec.name).ended)
    view = client.trainer(spec.name)
    assert view.state is TrainerState.FINISHED, view.message
    monkeypatch.setenv("RESULT", "alone")
    runpy.run_path(str(tmp_path / "fit.py"), run_name="__main__")
    found, expected = told(tmp_path, "trained"), told(tmp_path, "alone")
    assert sorted(found) == sorted(expected) == list(range(1, view.total_steps + 1))
    for step, ((loss, rate),) in ((step, tuple(said)) for step, said in expected.items()):
        for other_loss, other_rate in found[step]:
            assert other_loss == pytest.approx(loss, rel=1e-9), f"loss of step {step}"
            assert other_rate == pytest.approx(rate, rel=1e-12), f"learning rate after step {step}"
    trained, alone = (torch.load(tmp_path / f"{name}.pt") for name in ("trained", "alone"))
    for name, tensor in alone.items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-9, atol=1e-9)
