"""Tasks whose evaluation first gets better and then worse, and what a run of them ought to keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss

from oakum_worker.evaluation import sum_over
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from training_ranks import Points, build_spec, build_task

EVALUATE = {"every_steps": 2, "keep_best": "error", "patience": 3}


class HeldOut(Points):
    """Points with other random targets: what is learnt from the first ones is wrong for these sooner or later."""

    def __init__(self) -> None:
        super().__init__()
        self.targets = self.targets.roll(1, 0) + 0.3


def evaluated_task(**changes: Any) -> Task:
    """Evaluated on `HeldOut` by all ranks together."""
    task = build_task(dataset=Points())
    held_out = HeldOut()

    def evaluate(model: nn.Module) -> dict[str, float]:
        def sums(batch: Any) -> dict[str, Any]:
            return {"error": mse_loss(model(batch[0]), batch[1], reduction="sum")}

        return {"error": sum_over(held_out, sums, batch_size=8)["error"] / len(held_out), "one": 1.0}

    task.evaluate, task.evaluates_together = evaluate, True
    for name, value in changes.items():
        setattr(task, name, value)
    return task


def evaluated_loop(**changes: Any) -> TrainingLoop:
    return TrainingLoop(evaluated_task(), build_spec(**{"epochs": 12, "evaluate": EVALUATE} | changes))


def train_alone(loop: TrainingLoop) -> tuple[list[float], dict[int, float]]:
    """Losses by step, and the errors by the step of their evaluation."""
    torch.manual_seed(0)
    losses, errors = [], {}
    while not loop.finished:
        losses.append(loop.step().loss)
        if loop.evaluations.is_due:
            metrics = loop.evaluations.run()
            loop.evaluations.record(metrics)
            errors[loop.step_count] = metrics["error"]
    return losses, errors
