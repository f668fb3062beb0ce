"""The workload as one replica of torchft: its Manager forms a new quorum at each step.

Gradients go through the manager in one piece. torchft 0.2.0's DistributedDataParallel sends them in buckets, and
where a peer is lost its hook fails an assertion (`assert fut._fut`) that ends the survivors, too.

TORCHFT_LIGHTHOUSE=... python torchft_loop.py MODEL COMPUTE_S LOG_FOLDER REPLICA REPLICAS
"""

from __future__ import annotations

import itertools
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader
from torchft import DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from workload import GLOBAL_BATCH, Numbers, StepLog, build_model, loss_of

_TIMEOUT = timedelta(seconds=30)


def main() -> None:
    name, compute_s, log = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    replica, replicas = int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model, bare_optimizer = build_model(name)

    def state_dict() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": bare_optimizer.state_dict()}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        bare_optimizer.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=_TIMEOUT),
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        min_replica_size=1,
        timeout=_TIMEOUT,
        replica_id=f"replica{replica}",
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        hostname="127.0.0.1",
    )
    optimizer = Optimizer(manager, bare_optimizer)
    steps = StepLog(log)
    sampler = DistributedSampler(
        Numbers(), replica_rank=replica, num_replica_groups=replicas, group_rank=0, num_replicas=1
    )
    for _ in itertools.count():
        for samples in DataLoader(Numbers(), GLOBAL_BATCH // replicas, sampler=sampler):
            before = manager.current_step()
            optimizer.zero_grad()
            loss_of(model, samples, compute_s).backward()
            average_gradients(manager, model)
            optimizer.step()
            if manager.current_step() > before:
                rank = manager.participating_rank()
                steps.finished(manager.current_step(), -1 if rank is None else rank, manager.num_participants())


def average_gradients(manager: Manager, model: nn.Module) -> None:
    """Average the gradients over the replicas of the quorum. The manager remembers a failure, and the step is
    then not taken."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    manager.allreduce(flat).wait()
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


if __name__ == "__main__":
    main()
