"""Functions that the ranks of a generation run in tests whose ranks are processes."""

from __future__ import annotations

import copy
import os
import signal
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from oakum_worker.errors import GroupError
from oakum_worker.parallel.data import GradientReducer
from training_ranks import Points, ShakenPoints, build_loop, build_model, digest, mean_squared_error
from waiting import DEADLINE_S

LAST_STEP = 4


def draw(rank: int, world_size: int) -> dict[str, Any]:
    """Train with dropout and augmentation; returns the losses."""
    loop = build_loop(nn.Dropout(0.5), dataset=ShakenPoints(), micro_batch=2)
    loop.join(dist.group.WORLD, rank, world_size)
    return {"losses": [loop.step().loss for _ in range(6)]}


def compare_with_ddp(rank: int, world_size: int) -> dict[str, Any]:
    """Largest difference between our gradients and DistributedDataParallel's, over three batches."""
    ours = build_model()
    theirs = DistributedDataParallel(copy.deepcopy(ours))
    reducer = GradientReducer(ours, first_bucket_bytes=200, bucket_bytes=200)
    reducer.join(dist.group.WORLD, world_size)
    points, difference = Points(), 0.0
    for step in range(3):
        mine = slice(16 * step + 8 * rank, 16 * step + 8 * (rank + 1))
        batch = points.inputs[mine], points.targets[mine]
        reducer.begin(8, 16)
        reducer.backward(mean_squared_error(ours, batch), 8, last=True)
        reducer.finish()
        theirs.zero_grad()
        mean_squared_error(theirs, batch).backward()
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert p.grad is not None
            assert q.grad is not None
            difference = max(difference, (p.grad - q.grad).abs().max().item())
    return {"difference": difference}


def lose_a_peer(rank: int, world_size: int) -> dict[str, Any]:
    """The last rank is killed in the middle of a step; the others go on alone from the last finished one."""
    loop = build_loop(global_batch=12)
    loop.join(dist.group.WORLD, rank, world_size)
    if rank == world_size - 1:
        loop.task.loss = die_at_the_last_step(loop)
    kept = digest(loop)
    try:
        while True:
            loop.step()
            kept = digest(loop)
    except GroupError as error:
        found = {"error": str(error), "step": loop.step_count, "intact": digest(loop) == kept}
    loop.join(None, 0, 1)
    return found | {"next_loss": loop.step().loss}


def die_at_the_last_step(loop: Any) -> Any:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if loop.step_count == LAST_STEP:
            os.kill(os.getpid(), signal.SIGKILL)
        return mean_squared_error(model, batch)

    return loss


def run(mode: str, world_size: int, rank: int, store: dist.Store) -> dict[str, Any]:
    """What this process finds as a rank of torch's default group."""
    timeout = timedelta(seconds=DEADLINE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timeout)
    modes = {"ddp": compare_with_ddp, "lose_a_peer": lose_a_peer, "draw": draw}
    return modes[mode](rank, world_size)
