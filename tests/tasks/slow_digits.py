"""A small task of real work for the tests of the whole way: handwritten digits, float64, no randomness inside."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from digits.data import split
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def task(spec: TrainerSpec, step_s: float = 0.0) -> Task:
    """A two-layer network; `step_s` makes each rank's computation take at least so long."""
    train, held_out = split()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        began_s = time.monotonic()
        images, labels = batch
        result = cross_entropy(model(images.double()), labels)
        time.sleep(max(0.0, step_s - (time.monotonic() - began_s)))
        return result

    def evaluate(model: nn.Module) -> dict[str, float]:
        images, labels = held_out.tensors
        return {"accuracy": (model(images.double()).argmax(1) == labels).float().mean().item()}

    return Task(
        model=model,
        dataset=train,
        loss=loss,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        evaluate=evaluate,
        evaluate_every_epochs=1,
    )


def crashing_task(spec: TrainerSpec) -> Task:
    """Raises in its third step."""
    built = task(spec)
    calls = iter(range(10**9))

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        if next(calls) == 2:
            raise ValueError("labels and images disagree")
        return cross_entropy(model(batch[0].double()), batch[1])

    built.loss = loss
    return built


def broken_task(spec: TrainerSpec) -> Task:
    """Cannot be built."""
    raise RuntimeError("the data set is not where it was")
