"""A signal that comes while a step computes counts in that step: who is told to go need not wait for one more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch import nn

from cells import each
from oakum_worker.chain import Chain
from oakum_worker.parallel.data import GradientReducer
from oakum_worker.parallel.step_engine import StepVotes
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task
from pipeline_loops import begin
from training_ranks import Points, build_spec, build_task, in_ranks

_SIGNAL = 5


class Comes:
    """A signal that comes when the next sample is read, which is at the beginning of the passes."""

    def __init__(self, points: Points) -> None:
        self._points = points
        self._before = len(points.read)

    def __call__(self) -> int:
        return _SIGNAL if len(self._points.read) > self._before else 0


def build_chained_task() -> Task:
    task = build_task()
    assert isinstance(task.model, nn.Sequential)
    task.chain = task.loss = Chain(
        list(task.model), lambda batch: batch[0], lambda output, batch: nn.functional.mse_loss(output, batch[1])
    )
    return task


@pytest.mark.parametrize(
    "parallel",
    [{}, {"data": "sharded"}, {"pipeline": {}}, {"tensor": {"line": 1}}],
    ids=["replicated", "sharded", "pipeline", "grid"],
)
def test_each_strategy_asks_for_the_signal_after_its_passes(parallel: dict[str, Any], tmp_path: Path) -> None:
    build = build_chained_task if "pipeline" in parallel else build_task
    spec = build_spec(parallel=parallel)
    loop = TrainingLoop(build(), spec)
    begin(loop, spec, build, folder=tmp_path)
    assert isinstance(loop.task.dataset, Points)
    assert loop.step(Comes(loop.task.dataset)).signal == _SIGNAL
    assert loop.step().signal == 0


@each("bucket_bytes", [1, 1 << 20])
def test_all_ranks_of_a_replicated_trainer_hear_it_at_the_end_of_the_step(bucket_bytes: int) -> None:
    def run(group: dist.ProcessGroup, rank: int) -> int:
        task = build_task()
        reducer = GradientReducer(task.model, first_bucket_bytes=bucket_bytes, bucket_bytes=bucket_bytes)
        reducer.join(group, 2)
        signals = [0, 0]
        reducer.begin(4, 8, lambda: StepVotes(signals[rank]))
        loss = task.loss(task.model, task.read(range(4)))
        signals[0] = _SIGNAL
        reducer.backward(loss, 4, last=True)
        signals[0] = 0
        return reducer.finish().votes.signal

    assert in_ranks(2, run) == [_SIGNAL] * 2
