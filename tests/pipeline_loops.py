"""Whole pipeline trainers whose ranks are threads of the test's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.sharded_keeper import ShardedKeeper
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from oakum_worker.trainer import TrainingLoop
from pipeline_ranks import meeting_at
from training_ranks import in_ranks


class _Around:
    """The surroundings of ranks that neither come nor go."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        self._values = values

    def successor(self, at_least: int) -> tuple[int, int | None] | None:
        return None

    def closing(self) -> bool:
        return False

    def initial_values(self) -> dict[str, torch.Tensor]:
        return self._values

    def warn(self, text: str) -> None:
        raise AssertionError(text)


def generation_of(num_ranks: int) -> Generation:
    """The first one, with a rank on each of so many nodes."""
    ranks = (Endpoint(host="h", port=1),)
    members = (Member(fragment=f"f{number}", node=f"n{number}", ranks=ranks) for number in range(num_ranks))
    return Generation(number=1, members=tuple(members))


def train_stages(
    build: Callable[[], Task], spec: TrainerSpec, num_ranks: int, num_steps: int
) -> tuple[list[float], list[TrainingLoop]]:
    """The losses of so many steps, and the loop of each rank afterwards. For tasks that draw nothing."""
    store, loops = dist.HashStore(), [TrainingLoop(build(), spec) for _ in range(num_ranks)]

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        loop = loops[rank]
        assert loop.shards is not None
        assert not isinstance(loop.engine, GradientReducer)
        around = _Around(dict(build().model.state_dict()) if rank == 0 else {})
        checkpoints = DurableCheckpoints(Path("/nowhere"), keep=1)
        keeper = ShardedKeeper(loop, loop.shards, loop.engine, spec, checkpoints, around)
        loop.join(group, rank, num_ranks, subgroups=meeting_at(store, rank))
        keeper.begin(generation_of(num_ranks), rank)
        return [loop.step().loss for _ in range(num_steps)]

    return in_ranks(num_ranks, run)[0], loops
