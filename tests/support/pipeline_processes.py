"""Functions that the workers of a pipeline run in tests whose workers are processes."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from oakum_worker.chain import Chain
from oakum_worker.errors import GroupError
from oakum_worker.parallel import group_sockets
from oakum_worker.parallel.pipeline.schedules import build
from pipeline_ranks import (
    Pipeline,
    Rank,
    Share,
    Training,
    consecutive,
    meeting_at,
    take_part,
)

NUM_WORKERS = 4
WIDTH, NUM_MICRO_BATCHES = 8, 8


def build_untied() -> Chain:
    """Eight layers without tied weights, which torch's schedules do not have."""
    torch.manual_seed(2)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)]
    return Chain(
        nn.ModuleList(layers).double(), inputs=lambda batch: batch, loss=lambda out, _: out.square().mean()
    )


def points(num_samples: int, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(num_samples, WIDTH, generator=generator, dtype=torch.float64)


UNTIED = Training(build_untied, sizes=(2,) * NUM_MICRO_BATCHES, batch=points, optimizer=torch.optim.SGD, lr=0.0)
TORCHS: dict[str, tuple[Any, int, Pipeline]] = {
    name: (
        schedule,
        per_worker,
        Pipeline(build(name, num_workers=NUM_WORKERS, num_micro_batches=NUM_MICRO_BATCHES, **options)),
    )
    for name, schedule, per_worker, options in (
        ("gpipe", ScheduleGPipe, 1, {}),
        ("1f1b", Schedule1F1B, 1, {}),
        ("interleaved", ScheduleInterleaved1F1B, 2, {}),
        ("zero-bubble", ScheduleInterleavedZeroBubble, 2, {"stages_per_worker": 2}),
    )
}


def compare_with_torch(rank: int, store: dist.Store) -> dict[str, float]:
    """For each schedule the greatest difference between torch's gradients and ours, over this rank's weights."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_WORKERS)
    differences = {}
    for name, (schedule, per_worker, pipeline) in TORCHS.items():
        ours = take_part(pipeline, UNTIED, rank, meeting_at(store, rank, name)).gradients
        theirs = torchs_gradients(schedule, per_worker, rank)
        assert ours.keys() == theirs.keys()
        differences[name] = max((ours[key] - theirs[key]).abs().max().item() for key in ours)
    return differences


def torchs_gradients(schedule: Any, per_worker: int, rank: int) -> dict[str, torch.Tensor]:
    chain = build_untied()
    num_stages = NUM_WORKERS * per_worker
    size = len(chain.layers) // num_stages
    numbers = range(rank, num_stages, NUM_WORKERS)
    held = {stage: range(stage * size, (stage + 1) * size) for stage in numbers}
    modules = {stage: nn.Sequential(*(chain.layers[layer] for layer in held[stage])) for stage in numbers}
    stages = [PipelineStage(modules[stage], stage, num_stages, torch.device("cpu")) for stage in numbers]
    batch = points(2 * NUM_MICRO_BATCHES)
    is_multi = issubclass(schedule, PipelineScheduleMulti)
    runner = schedule(
        stages if is_multi else stages[0], NUM_MICRO_BATCHES, loss_fn=lambda output, _: output.square().mean()
    )
    inputs = (batch,) if 0 in numbers else ()
    options = {"target": batch} if num_stages - 1 in numbers else {}
    runner.step(*inputs, **options)
    return {
        f"{layer}.{name}": p.grad
        for layers in held.values()
        for layer in layers
        for name, p in chain.layers[layer].named_parameters()
        if p.grad is not None
    }


class Deadly(nn.Module):
    """Kills its process in the middle of the second step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()
        self._count = 0

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self._count += 1
        if self._count == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(values)


def lose_a_worker(message_driven: bool, deadly: int, rank: int, store: dist.Store) -> str:
    """Compute two steps until a worker is lost; returns the text of the error."""
    layers = [Deadly() if number == deadly else nn.Linear(WIDTH, WIDTH).double() for number in range(4)]
    chain = Chain(layers, inputs=lambda batch: batch, loss=lambda output, _: output.square().mean())
    schedule = build("1f1b", num_workers=NUM_WORKERS, num_micro_batches=4)
    member = Rank(Pipeline(schedule, message_driven=message_driven), chain, rank, meeting_at(store, rank))
    try:
        for _ in range(2):
            member.step(Share(chain, points(8), consecutive([2] * 4)))
    except GroupError as error:
        return str(error)
    return "nothing"


def cut() -> None:
    """Break this process's connections, as its agent has it do when a member is lost."""
    for descriptor in group_sockets.own_sockets().values():
        group_sockets.shut_down(descriptor, own_port=0)
