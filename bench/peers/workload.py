"""What every contestant trains: the same model, data and optimizer, and one log of finished steps.

Three models. `dense`: 25 million float32 parameters (100 MB), all trained. `frozen`: as many, of which a frozen
table holds all but 1 MB, as in fine-tuning: the state to hand over is as large, the gradients are not. `small`:
that 1 MB alone. Time that an accelerator would compute is slept, so that ranks do not queue for this machine's
cores.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import mse_loss

ModelName = Literal["dense", "frozen", "small"]

GLOBAL_BATCH = 32
NUM_SAMPLES = 1 << 20
_WIDTH = 256
_DENSE_WIDTH = 2500


class Model(nn.Module):
    """A table of vectors that is looked up, if any, and layers that train."""

    def __init__(self, name: ModelName) -> None:
        super().__init__()
        width = _DENSE_WIDTH if name == "dense" else _WIDTH
        rows = 25_000_000 // width if name == "frozen" else 512
        self.table = nn.Embedding(rows, width)
        self.table.weight.requires_grad_(False)
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """Samples' numbers, shape (n,), to vectors (n, width)."""
        return self.layers(self.table(samples % self.table.num_embeddings))


def build_model(name: ModelName) -> tuple[Model, torch.optim.Optimizer]:
    """The model with the same weights in every process, and its optimizer."""
    torch.manual_seed(0)
    model = Model(name)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return model, torch.optim.SGD(trained, lr=1e-3, momentum=0.9)


class Numbers:
    """A data set of numbers; the model makes vectors of them."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


def loss_of(model: nn.Module, samples: torch.Tensor, compute_s: float) -> torch.Tensor:
    """Mean squared error to targets computed from the samples' numbers, after sleeping `compute_s` seconds."""
    time.sleep(compute_s)
    predicted = model(samples)
    target = (samples % 97).to(predicted.dtype).unsqueeze(1).expand_as(predicted) / 97
    return mse_loss(predicted, target)


class StepLog:
    """Appends a line for each step that this process finishes, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"{os.getpid()}.jsonl").open("a", buffering=1, encoding="utf-8")

    def finished(self, step: int, rank: int, world_size: int) -> None:
        """Note that a step has been taken; `step` counts finished steps."""
        line = {"at": time.time(), "pid": os.getpid(), "step": step, "rank": rank, "world_size": world_size}
        self._file.write(json.dumps(line) + "\n")
