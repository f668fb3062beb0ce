"""Models whose loss has the layers by another way than its `model` argument, as tasks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from oakum_worker.chain import Chain
from oakum_worker.task import Task
from training_ranks import Points, mean_squared_error


class Layered(nn.Module):
    """Three layers, the last of which uses the first one's weight, with dropout in between; blocks are units."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 7, bias=False), nn.Linear(5, 7)
        self.last.weight = self.first.weight
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 9), nn.Dropout(0.2), nn.Linear(9, 5))])
        self.readout = nn.Linear(7, 2)


def build_layered_model() -> Layered:
    """The same weights in each process."""
    torch.manual_seed(1)
    return Layered().double()


def build_chained_task() -> Task:
    """A chain as loss and for the evaluation: two of its layers are one that the model does not have."""
    model = build_layered_model()
    chain = Chain(
        layers=[model.first, *model.blocks, nn.Sequential(model.last, nn.Tanh(), model.readout)],
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    data = Points()

    def evaluate(model: nn.Module) -> dict[str, float]:
        error = chain(model, (data.inputs, data.targets))
        assert isinstance(error, torch.Tensor)
        return {"error": error.item()}

    return Task(
        model=model,
        dataset=data,
        loss=chain,
        chain=chain,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        evaluate=evaluate,
    )


def build_enclosing_task() -> Task:
    """A loss of which a part is computed with the entrypoint's own model."""
    first = nn.Linear(5, 4)
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(4, 2)).double()

    def loss(given: nn.Module, batch: Any) -> torch.Tensor:
        return mean_squared_error(given, batch) + 0.1 * first.weight.square().sum()

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Task(model=model, dataset=Points(), loss=loss, optimizer=optimizer)


class PartlyIdle(nn.Module):
    """A layer of which one part is never used, and another is frozen."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.used, self.idle = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs)
        self.frozen = nn.Linear(inputs, outputs).requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.used(inputs)
        return hidden


def build_idle_task() -> Task:
    """A chain of three layers, two of which have parts that are never used."""
    torch.manual_seed(1)
    layers = [PartlyIdle(5, 4), nn.Tanh(), PartlyIdle(4, 2)]
    model = nn.Sequential(*layers).double()
    chain = Chain(layers, lambda batch: batch[0], lambda output, batch: mse_loss(output, batch[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return Task(model=model, dataset=Points(), loss=mean_squared_error, optimizer=optimizer, chain=chain)
