"""The example's classifier, slowed down for as long as a test disturbs it."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import nn

from digits import classifier
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def task(spec: TrainerSpec, gate: str, step_s: float) -> Task:
    """Its steps take `step_s` longer until the file `gate` is there, so that nodes come and go while it trains."""
    built = classifier.task(spec)
    compute = built.loss

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if not Path(gate).exists():
            time.sleep(step_s)
        return compute(model, batch)

    built.loss = loss
    return built
