"""A rank that updates sharded weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from oakum_worker.step.optimizer_step import OptimizerStep, UpdateOutcome
from oakum_worker.task import Task
from training_ranks import Points, build_model, build_spec, mean_squared_error

SPEC = build_spec(
    precision="float16",
    clip_grad_norm=3.0,
    warm_up={"epochs": 2},
    lars={"trust_coefficient": 0.1, "clip": True},
)


def build_task(model: nn.Module) -> Task:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)
    return Task(model=model, dataset=Points(), loss=mean_squared_error, optimizer=optimizer)


def fill_gradients(model: nn.Module, step: int, value: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(step)
    for parameter in model.parameters():
        gradient = value * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if isinstance(parameter, DTensor):
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient


def update(task: Task, updater: OptimizerStep, step: int) -> UpdateOutcome:
    fill_gradients(task.model, step, updater.loss_scale)
    return updater.update(step / 2)


def whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run(world_size: int, rank: int, store: dist.Store) -> dict[str, Any]:
    """Update sharded weights; returns how far they move, by how much they differ from those that one process
    updates, and whether a step is skipped if a gradient is not finite on one rank alone."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    plain = build_task(build_model())
    sharded = build_task(fully_shard(copy.deepcopy(plain.model), mesh=init_device_mesh("cpu", (world_size,))))
    updaters = OptimizerStep(plain, SPEC), OptimizerStep(sharded, SPEC)
    first = [parameter.detach().clone() for parameter in plain.model.parameters()]
    difference = 0.0
    for step in range(4):
        norms = [update(t, u, step).grad_norm for t, u in zip((plain, sharded), updaters, strict=True)]
        pairs = zip([norms[0], *plain.model.parameters()], [norms[1], *sharded.model.parameters()], strict=True)
        difference = max(difference, *((whole(a) - whole(b)).abs().max().item() for a, b in pairs))
    moved = max((a - b).abs().max().item() for a, b in zip(first, plain.model.parameters(), strict=True))
    fill_gradients(sharded.model, 9)
    if rank == world_size - 1:
        gradient: Any = next(sharded.model.parameters()).grad
        gradient.to_local().fill_(torch.inf)
    skipped = updaters[1].update(9.0).skipped
    return {"moved": moved, "difference": difference, "skipped": skipped}
