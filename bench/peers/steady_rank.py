"""One rank of the steady-state comparison: blocks of our steps and of DistributedDataParallel's in turn.

    python steady_rank.py RANK WORLD_SIZE RENDEZVOUS_FILE steps MODEL COMPUTE_S ROUNDS STEPS
    python steady_rank.py RANK WORLD_SIZE RENDEZVOUS_FILE agreement ROUNDS

Both train the same model in the same processes over the same group. Rank 0 prints what was measured as JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workload import GLOBAL_BATCH, ModelName, Numbers, build_model, loss_of

from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task

Step = Callable[[], object]


def our_step(name: ModelName, compute_s: float, rank: int, world_size: int) -> Step:
    """A step of the training loop."""
    model, optimizer = build_model(name)
    task = Task(
        model=model,
        dataset=Numbers(),
        loss=lambda model, samples: loss_of(model, samples, compute_s),
        optimizer=optimizer,
    )
    fields = {"name": "ours", "entrypoint": "a:b", "global_batch": GLOBAL_BATCH, "epochs": 1}
    loop = TrainingLoop(task, TrainerSpec.model_validate(fields))
    loop.join(dist.group.WORLD, rank, world_size)
    return loop.step


def their_step(name: ModelName, compute_s: float, rank: int, world_size: int) -> Step:
    """A step of the plain loop; it looks at its loss, as ours does."""
    model, optimizer = build_model(name)
    replicated = DistributedDataParallel(model)
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(), world_size, rank)
    batches = iter(DataLoader(Numbers(), GLOBAL_BATCH // world_size, sampler=sampler))

    def step() -> float:
        optimizer.zero_grad()
        loss = loss_of(replicated, next(batches), compute_s)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def time_steps(step: Step, count: int) -> list[float]:
    """Seconds that each of `count` steps took on this rank. Ranks wait for each other once, before the first."""
    dist.barrier()
    seconds = []
    for _ in range(count):
        began_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began_s)
    return seconds


def compare_steps(rank: int, world_size: int, name: ModelName, compute_s: float, rounds: int, steps: int) -> Any:
    """Seconds of each step of each block."""
    ours = our_step(name, compute_s, rank, world_size)
    theirs = their_step(name, compute_s, rank, world_size)
    for step in (ours, theirs):
        time_steps(step, 3)
    measured: list[dict[str, list[float]]] = []
    for number in range(rounds):
        order = (("ours", ours), ("theirs", theirs))
        measured.append({who: time_steps(step, steps) for who, step in (order if number % 2 else order[::-1])})
    return measured


def price_agreement(rounds: int) -> Any:
    """Medians: the tail's own operations, a bucket with it and without, and a collective for it alone."""
    bucket, tail = torch.zeros(1 << 18), torch.zeros(3)
    longer = torch.zeros((1 << 18) + 3)
    loss = torch.tensor(0.5, requires_grad=True)

    def write_and_read() -> None:
        tail[0], tail[1], tail[2] = 0, 8, 3
        tail[0] += loss.detach().to(tail.device) * 0.25
        tail.tolist()

    probes: dict[str, Step] = {
        "tail_s": write_and_read,
        "without_s": lambda: dist.all_reduce(bucket),
        "with_s": lambda: dist.all_reduce(longer),
        "own_collective_s": lambda: dist.all_reduce(tail),
    }
    measured = [{name: time_steps(probe, 1)[0] for name, probe in probes.items()} for _ in range(rounds)]
    return {
        "tail_s": statistics.median(block["tail_s"] for block in measured),
        "longer_s": statistics.median(block["with_s"] - block["without_s"] for block in measured),
        "own_collective_s": statistics.median(block["own_collective_s"] for block in measured),
    }


def main() -> None:
    rank, world_size, rendezvous = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    what, *given = sys.argv[4:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(minutes=5),
    )
    if what == "steps":
        name, compute_s, rounds, steps = given
        measured = compare_steps(rank, world_size, name, float(compute_s), int(rounds), int(steps))
    else:
        measured = price_agreement(int(given[0]))
    if rank == 0:
        print(json.dumps(measured), flush=True)
    dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
