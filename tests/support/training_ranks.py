"""Small trainings, and ranks that are threads of the test's process: a generation without starting processes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset

from oakum_worker.spec import TrainerSpec
from oakum_worker.state.tree import dismantle
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from rank_threads import RankThreads
from turns import MemorySubgroups, in_turns

torch.set_num_threads(1)

NUM_SAMPLES = 53
_CONNECT_TIMEOUT = timedelta(seconds=20)
R = TypeVar("R")
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


class Points(Dataset):
    """`NUM_SAMPLES` random points with a target each; notes which were read."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(7)
        self.inputs = torch.randn(NUM_SAMPLES, 5, generator=generator, dtype=dtype)
        self.targets = torch.randn(NUM_SAMPLES, 2, generator=generator, dtype=dtype)
        self.read: list[int] = []

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.read.append(index)
        return self.inputs[index], self.targets[index]


class ShakenPoints(Points):
    """Adds noise to a sample when it is read."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = super().__getitem__(index)
        return inputs + 0.1 * torch.randn(5, dtype=inputs.dtype), targets


def mean_squared_error(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


def build_model(*extra: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), *extra, nn.Linear(8, 2)).double()


def build_task(
    *extra: nn.Module, dataset: Points | None = None, seed: int = 0, loss: LossFunction = mean_squared_error
) -> Task:
    """A regression in float64 with Adam and a schedule."""
    model = build_model(*extra, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=100)
    return Task(
        model=model,
        dataset=dataset or Points(),
        loss=loss,
        optimizer=optimizer,
        scheduler=scheduler,
    )


def build_spec(**changes: Any) -> TrainerSpec:
    fields = {"name": "points", "entrypoint": "points:task", "global_batch": 8, "epochs": 2, "seed": 3}
    return TrainerSpec.model_validate(fields | changes)


def build_loop(
    *extra: nn.Module,
    dataset: Points | None = None,
    seed: int = 0,
    loss: LossFunction = mean_squared_error,
    **changes: Any,
) -> TrainingLoop:
    return TrainingLoop(build_task(*extra, dataset=dataset, seed=seed, loss=loss), build_spec(**changes))


def in_ranks(world_size: int, function: Callable[[dist.ProcessGroup, int], R]) -> list[R]:
    """Run `function(group, rank)` on each rank of a new gloo group; returns each rank's result."""
    return RankThreads(function, _meet(world_size), range(world_size)).results()


def _meet(world_size: int) -> list[dist.ProcessGroupGloo]:
    """The ranks' ends of a group. On a busy machine one in some thousand fails to connect: the next one will."""
    for is_last in (False, True):
        store = dist.HashStore()
        connect = partial(dist.ProcessGroupGloo, store, size=world_size, timeout=_CONNECT_TIMEOUT)
        ends = RankThreads(connect, range(world_size)).outcomes()
        if not any(end.exception() for end in ends) or is_last:
            break
    for end in ends:
        end.result()._set_default_timeout(timedelta(seconds=240))
    return [end.result() for end in ends]


def step_together(loops: list[TrainingLoop], num_steps: int, share_from: int | None = None) -> list[float]:
    """Let the loops be the ranks of a generation for some steps; returns rank 0's losses."""

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loops[rank].join(group, rank, len(loops))
        if share_from is not None:
            loops[rank].state.share(share_from)
        return [loops[rank].step().loss for _ in range(num_steps)]

    return in_ranks(len(loops), run)[0]


def take_turns(loops: list[TrainingLoop], num_steps: int) -> list[float]:
    """As `step_together`, with ranks that take turns and meet in memory."""

    def run(rank: int, subgroups: MemorySubgroups) -> list[float]:
        loops[rank].join(subgroups.form("all", range(len(loops))), rank, len(loops))
        return [loops[rank].step().loss for _ in range(num_steps)]

    return in_turns(len(loops), run)[0]


def digest(loop: TrainingLoop) -> str:
    """A hash of every bit of the loop's state."""
    return digest_of(loop.state.state_dict())


def digest_of(state: Any) -> str:
    """A hash of every bit of a state."""
    document, tensors = dismantle(state)
    parts = hashlib.sha256(json.dumps(document).encode())
    for tensor in tensors.values():
        parts.update(bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()))
    return parts.hexdigest()
