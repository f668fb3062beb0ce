"""What pipelines of processes train in tests.

Processes import the module that a task's function is in, so it is not in the tests themselves.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from oakum_worker.chain import Chain
from oakum_worker.task import Task
from pipeline_ranks import build_transformer, sentences
from training_ranks import NUM_SAMPLES, Points

WIDTH = 6


class Block(nn.Module):
    """A layer that drops, normalises and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return hidden + self.drop(torch.tanh(self.mix(self.norm(hidden))))


class Deep(nn.Module):
    """Eight layers; the first and the last share a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, WIDTH, bias=False)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.out = Readout(self.into)


class Readout(nn.Module):
    """The first layer's matrix again, and one of its own."""

    def __init__(self, tied: nn.Linear) -> None:
        super().__init__()
        self.weight = tied.weight
        self.own = nn.Linear(5, 2)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.own(hidden @ self.weight)


def build_deep_task() -> Task:
    """Two groups of parameters, a schedule and a third moment."""
    torch.manual_seed(2)
    model = Deep().double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, amsgrad=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    chain = Chain(
        layers=[model.into, *model.blocks, model.out],
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    return Task(model=model, dataset=Points(), loss=chain, optimizer=optimizer, scheduler=schedule, chain=chain)


def evaluate(model: nn.Module) -> dict[str, float]:
    """Sums over everything that the model has."""
    return {name: float(value.double().sum()) for name, value in model.state_dict().items() if "seen" not in name}


def build_evaluated_task() -> Task:
    """The same, evaluated after each epoch."""
    task = build_deep_task()
    task.evaluate = evaluate
    return task


class Sentences(Dataset):
    """53 sentences."""

    def __init__(self) -> None:
        self._all = sentences(NUM_SAMPLES)

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._all[index]


def build_transformer_task() -> Task:
    """Ten layers, tied at their ends, with dropout."""
    chain = build_transformer(dropout=0.1)
    assert isinstance(chain.layers, nn.ModuleList)
    optimizer = torch.optim.AdamW(chain.layers.parameters(), lr=0.01)
    return Task(model=chain.layers, dataset=Sentences(), loss=chain, optimizer=optimizer, chain=chain)
