"""Schedules in the order that `torch.distributed.pipelining` gives them: interleaved and zero-bubble ones.

Its schedule classes compute, when they are made, what every rank does: `pipeline_order`. They look at a few public
attributes of the stages they are given, so stages need no module. torch is imported when a schedule is asked for.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.operations import Kind, Operation

_CLASSES = {
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
    "zero-bubble-v": "ScheduleZBVZeroBubble",
}


def torch_order(
    name: str, num_workers: int, stages_per_worker: int, num_micro_batches: int
) -> list[list[Operation]]:
    """What each worker computes, in its order. Raises `ScheduleError` for what torch refuses, or without torch."""
    try:
        schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    except ImportError as error:
        raise ScheduleError(f"the schedule {name!r} needs torch: install oakum[worker]") from error
    stages = [_stage(index, num_workers, stages_per_worker) for index in range(stages_per_worker)]
    try:
        order = getattr(schedules, _CLASSES[name])(stages, n_microbatches=num_micro_batches).pipeline_order
    except ValueError as error:
        raise ScheduleError(
            f"torch has no schedule {name!r} of {num_micro_batches} micro-batches on {num_workers} workers with "
            f"{stages_per_worker} stages each: {error}"
        ) from error
    return [
        [
            Operation(Kind(action.computation_type.value), action.stage_index, 0, (action.microbatch_index,))
            for action in order[worker]
            if action is not None
        ]
        for worker in range(num_workers)
    ]


def _stage(index: int, num_workers: int, stages_per_worker: int) -> SimpleNamespace:
    """What a schedule class looks at in the stages of rank 0."""
    num_stages = num_workers * stages_per_worker
    return SimpleNamespace(
        stage_index=index,
        num_stages=num_stages,
        group_size=num_workers,
        group_rank=0,
        submod=None,
        has_backward=True,
        is_first=index == 0,
        is_last=index == num_stages - 1,
    )
