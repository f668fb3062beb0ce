"""A loop with an `Accelerator`: what it promises beyond what `test_adapters` shows of every library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader

from adapters import spec
from oakum_worker.errors import SessionError
from oakum_worker.session.hosts import RankHost
from oakum_worker.session.scripts import run_script
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.step.turns import turns_alone
from training_ranks import Points

pytestmark = [pytest.mark.needs("hugging-face"), pytest.mark.usefixtures("states_of_threads")]


BREAKS = """
import torch
from torch.nn.functional import mse_loss
from oakum.accelerate import Accelerator
from training_ranks import Points

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(5, 2).double()
loader = torch.utils.data.DataLoader(Points(), batch_size=9, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for epoch in accelerator.epochs():
    for inputs, targets in loader:
        accelerator.backward(mse_loss(model(inputs), targets))
        optimizer.step()
    if epoch == 1:
        break
"""


def _prepared(**changes: Any) -> Any:
    from oakum.accelerate import Accelerator

    accelerator = Accelerator(cpu=True, epochs=1)
    model = nn.Linear(5, 2).double()
    loader = DataLoader(Points(), **({"batch_size": 8, "shuffle": True} | changes))
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)


def test_an_epoch_may_not_be_left_in_its_middle() -> None:
    accelerator, model, optimizer, loader = _prepared()
    epochs = accelerator.epochs()
    assert next(epochs) == 0
    inputs, targets = next(iter(loader))
    accelerator.backward(mse_loss(model(inputs), targets))
    optimizer.step()
    with pytest.raises(SessionError, match="left in the middle of epoch 0"):
        next(epochs)


def test_a_script_that_leaves_its_loop_ends_training_when_it_ends(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(BREAKS, encoding="utf-8")
    left: list[TrainingLoop] = []

    def begin(loop: TrainingLoop) -> Any:
        left.append(loop)
        return turns_alone(loop)

    run_script(spec(workdir=str(tmp_path)), RankHost(spec(), begin, lambda: None))
    assert left[0].finished
    assert left[0].epoch == 2


def test_what_cannot_be_kept_is_refused() -> None:
    from oakum.accelerate import Accelerator

    accelerator, model, _, loader = _prepared()
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(SessionError, match="leave the call out"):
            call("folder")
    with pytest.raises(SessionError, match="training has not begun"):
        next(iter(loader))
    with pytest.raises(SessionError, match="a second optimizer"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(SessionError, match="drop_last"):
        _prepared(drop_last=True)
    with pytest.raises(SessionError, match="no data loader that shuffles"):
        next(_prepared(shuffle=False)[0].epochs())
    with pytest.raises(SessionError, match="no model or no optimizer"):
        next(Accelerator(cpu=True, epochs=1).epochs())
