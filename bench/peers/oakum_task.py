"""The workload as an Oakum task."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from workload import ModelName, Numbers, StepLog, build_model, loss_of

from oakum_worker.parallel import nccl
from oakum_worker.task import Task


def task(model_name: ModelName, compute_s: float, log: str) -> Task:
    """The workload as a task; every rank writes its finished steps to the folder `log`."""
    model, optimizer = build_model(model_name)
    if os.environ.get("BENCH_ON_GPU"):
        model.cuda()
        # All ranks share the GPU, which NCCL refuses.
        nccl.backend = lambda: "gloo"
    counter = LambdaLR(optimizer, lambda step: 1.0)
    steps = StepLog(Path(log))

    def loss(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
        return loss_of(model, samples.to(next(model.parameters()).device), compute_s)

    def finished(*_: object) -> None:
        together = dist.is_initialized()
        rank, world_size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        steps.finished(counter.last_epoch + 1, rank, world_size)

    optimizer.register_step_post_hook(finished)
    return Task(model=model, dataset=Numbers(), loss=loss, optimizer=optimizer, scheduler=counter)
