"""Tasks whose losses compare the samples of a batch with each other: of the gathered batch, or in one process."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from oakum_worker.gathering import gather_batch, own_rows
from oakum_worker.task import Task
from training_ranks import Points


class TwoTowers(nn.Module):
    """Embeddings of inputs and of targets, with dropout and a temperature that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 4))
        self.targets = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4))
        self.temperature = nn.Parameter(torch.tensor([2.0]))

    def forward(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return normalize(self.inputs(batch[0])), normalize(self.targets(batch[1]))


def contrastive_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """InfoNCE in both directions, each sample against all of the global batch."""
    ones, others = model(batch)
    temperature: Any = model.temperature
    rows = own_rows(ones)
    forth = cross_entropy(ones @ gather_batch(others).T * temperature, rows)
    back = cross_entropy(others @ gather_batch(ones).T * temperature, rows)
    return (forth + back) / 2


def contrastive_loss_alone(model: nn.Module, batch: Any) -> torch.Tensor:
    """Contrastive loss (symmetric cross entropy of similarities) of a whole batch in one process."""
    ones, others = model(batch)
    temperature: Any = model.temperature
    logits = ones @ others.T * temperature
    rows = torch.arange(len(ones))
    return (cross_entropy(logits, rows) + cross_entropy(logits.T, rows)) / 2


def ratio_alone(model: nn.Module, batch: Any) -> torch.Tensor:
    """A loss that is no mean over samples: a ratio of sums over the batch, as Dice is, plus the squared batch
    mean."""
    ones, others = model(batch)
    return 1 - (ones * others).sum() / (ones.square().sum() + others.exp().sum()) + ones.mean(0).square().sum()


def ratio_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """`ratio_alone` of the batch gathered from all ranks, on every rank."""
    return ratio_alone(lambda _: [gather_batch(values) for values in model(batch)], batch)  # type: ignore[arg-type]


def total_loss(model: nn.Module, batch: Any) -> Any:
    """Samples against all others, weighted by what they are; with the weights."""
    ones, others = model(batch)
    losses = cross_entropy(ones @ gather_batch(others).T, own_rows(ones), reduction="none")
    weights = batch[1][:, 0].abs()
    return (losses * weights).sum(), weights.sum()


def total_loss_alone(model: nn.Module, batch: Any) -> torch.Tensor:
    ones, others = model(batch)
    weights = batch[1][:, 0].abs()
    return (
        cross_entropy(ones @ others.T, torch.arange(len(ones)), reduction="none") * weights
    ).sum() / weights.sum()


def build_gathering_task(loss: Any = contrastive_loss, gathers: bool = True) -> Task:
    torch.manual_seed(3)
    model = TwoTowers().double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return Task(model=model, dataset=Points(), loss=loss, optimizer=optimizer, gathers=gathers)


def build_blind_task() -> Task:
    """A task whose contrastive loss gathers nothing, so that each rank sees only its own samples."""
    return build_gathering_task(contrastive_loss_alone, gathers=False)
