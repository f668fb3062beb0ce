"""Whole pipeline trainers whose ranks are threads of the test's process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from oakum_worker.checkpoint.durable import DurableCheckpoints
from oakum_worker.keeping.keeper import KeeperContext
from oakum_worker.parallel.subgroups import Subgroups
from oakum_worker.protocol import Endpoint, Generation, Member
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_ranks import meeting_at
from training_ranks import in_ranks
from turns import MemorySubgroups, in_turns


class _Around:
    """The process of a rank, as its keeper sees it, in a generation that does not change."""

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
    """The first generation, with one rank on each of `num_nodes` nodes."""
    ranks = (Endpoint(host="h", port=1),)
    members = (Member(fragment=f"f{number}", node=f"n{number}", ranks=ranks) for number in range(num_ranks))
    return Generation(number=1, members=tuple(members))


def train_stages(
    build: Callable[[], Task], spec: TrainerSpec, num_ranks: int, num_steps: int
) -> tuple[list[float], list[TrainingLoop]]:
    """Train `num_steps` steps on `num_ranks` ranks; returns the losses and each rank's loop. For tasks without
    draws."""
    store, loops = dist.HashStore(), [TrainingLoop(build(), spec) for _ in range(num_ranks)]

    def run(group: dist.ProcessGroup, rank: int) -> list[float]:
        return _train(loops[rank], spec, build, group, meeting_at(store, rank), num_steps)

    return in_ranks(num_ranks, run)[0], loops


def train_in_turns(
    build: Callable[[], Task], spec: TrainerSpec, num_ranks: int, num_steps: int
) -> tuple[list[float], list[TrainingLoop]]:
    """As `train_stages`, by ranks that take turns and whose groups are in memory."""
    loops = [TrainingLoop(build(), spec) for _ in range(num_ranks)]

    def run(rank: int, subgroups: MemorySubgroups) -> list[float]:
        world = subgroups.form("all", range(num_ranks))
        return _train(loops[rank], spec, build, world, subgroups, num_steps)

    return in_turns(num_ranks, run)[0], loops


def _train(
    loop: TrainingLoop,
    spec: TrainerSpec,
    build: Callable[[], Task],
    group: dist.ProcessGroup,
    subgroups: Subgroups,
    num_steps: int,
) -> list[float]:
    begin(loop, spec, build, group, subgroups)
    return [loop.step().loss for _ in range(num_steps)]


def begin(
    loop: TrainingLoop,
    spec: TrainerSpec,
    build: Callable[[], Task],
    group: dist.ProcessGroup | None = None,
    subgroups: Subgroups | None = None,
    folder: Path = Path("/nowhere"),
) -> None:
    """Let the loop begin the first generation, alone or as a rank of the group. `folder`: for checkpoints."""
    rank, num_ranks = (0, 1) if group is None else (group.rank(), group.size())
    around = _Around(dict(build().model.state_dict()) if rank == 0 else {})
    checkpoints = DurableCheckpoints(folder, keep=1)
    keeper = loop.assembly.make_keeper(KeeperContext(loop.state, spec, checkpoints, around))
    loop.join(group, rank, num_ranks, subgroups=subgroups)
    keeper.begin(generation_of(num_ranks), rank)
