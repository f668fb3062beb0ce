"""The workload as a script for `torchrun`: DistributedDataParallel, and a snapshot that restarted workers load.

torchrun ... torchrun_loop.py MODEL COMPUTE_S LOG_FOLDER SNAPSHOT_FILE
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from workload import GLOBAL_BATCH, Model, Numbers, StepLog, build_model, loss_of

SNAPSHOT_EVERY_STEPS = 50


def main() -> None:
    name, compute_s, log, snapshot = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model, optimizer = build_model(name)
    finished = load(snapshot, model, optimizer)
    replicated = DistributedDataParallel(model)
    steps = StepLog(log)
    sampler: DistributedSampler[int] = DistributedSampler(Numbers(), world_size, rank)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for samples in DataLoader(Numbers(), GLOBAL_BATCH // world_size, sampler=sampler):
            optimizer.zero_grad()
            loss_of(replicated, samples, compute_s).backward()
            optimizer.step()
            finished += 1
            steps.finished(finished, rank, world_size)
            if rank == 0 and finished % SNAPSHOT_EVERY_STEPS == 0:
                save(snapshot, model, optimizer, finished)


def load(snapshot: Path, model: Model, optimizer: torch.optim.Optimizer) -> int:
    """Load the snapshot if there is one; returns its number of finished steps, else 0."""
    if not snapshot.exists():
        return 0
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def save(snapshot: Path, model: Model, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Replace the snapshot."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save(state, snapshot.with_suffix(".new"))
    snapshot.with_suffix(".new").replace(snapshot)


if __name__ == "__main__":
    main()
