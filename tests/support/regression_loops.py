"""What the tests of libraries' own loops train: a small regression in float64, and what its ranks tell."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from oakum_worker.spec import TrainerSpec
from training_ranks import NUM_SAMPLES, Points

EPOCHS = 9
PER_RANK = 3
ACCUMULATED = 3
BATCH = PER_RANK * ACCUMULATED
STEPS_PER_EPOCH = -(-NUM_SAMPLES // BATCH)


def spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "loop", "script": "loop.py", "global_batch": BATCH, "epochs": EPOCHS, "seed": 3}
    return TrainerSpec.model_validate(fields | changes)


def network() -> nn.Module:
    """A network whose weights are equal at each call."""
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    with torch.no_grad():
        for number, p in enumerate(model.parameters()):
            p.copy_(torch.linspace(-0.5, 0.5, p.numel(), dtype=p.dtype).view_as(p) * (number + 1) / 2)
    return model


class Best:
    """The lowest loss of validation so far, part of a script's state."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses)}

    def load_state_dict(self, state: Any) -> None:
        self.losses = list(state["losses"])

    def validate(self, model: nn.Module) -> None:
        points = Points()
        with torch.no_grad():
            self.losses.append(mse_loss(model(points.inputs), points.targets).item())
