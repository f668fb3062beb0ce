"""A task that is evaluated by what its model computes and consists of, so that other weights show."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from oakum_worker.chain import Chain
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from training_ranks import Points, build_spec, mean_squared_error

DECAY = 0.8
STEPS = 14
"""Two epochs of 53 samples in batches of 8."""


def evaluate(model: nn.Module) -> dict[str, float]:
    """The loss on eight samples, and the sum of each tensor."""
    points = Points()
    predicted = model(points.inputs[:8])
    found = {"loss": float(mse_loss(predicted, points.targets[:8]))}
    for name, value in model.named_parameters():
        whole: torch.Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name] = float(whole.double().sum())
    return found


def build_averaged_task() -> Task:
    """Layers of odd sizes in two groups of parameters, AdamW, a schedule."""
    torch.manual_seed(6)
    layers = [nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 7), nn.LayerNorm(7), nn.Linear(7, 11), nn.Linear(11, 2)]
    model = nn.Sequential(*layers).double()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.05, 0.1], total_steps=100)
    return Task(
        model=model,
        dataset=Points(),
        loss=mean_squared_error,
        optimizer=optimizer,
        scheduler=schedule,
        evaluate=evaluate,
    )


def build_staged_task() -> Task:
    """The averaged task as a chain of layers, for pipelines."""
    task = build_averaged_task()
    task.chain = Chain(
        layers=list(cast(nn.Sequential, task.model)),
        inputs=lambda batch: batch[0],
        loss=lambda output, batch: mse_loss(output, batch[1]),
    )
    task.loss = task.chain
    return task


def expected_metrics(build: Callable[[], Task] = build_averaged_task) -> dict[int, dict[str, float]]:
    """Step -> metrics of the average that torch's own class keeps during undisturbed training in one process."""
    task = build()
    loop = TrainingLoop(task, build_spec())
    average = AveragedModel(task.model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    found = {}
    for step in range(1, STEPS + 1):
        loop.step()
        average.update_parameters(task.model)
        if loop.evaluations.is_due:
            with torch.no_grad():
                found[step] = evaluate(average.module)
    return found
