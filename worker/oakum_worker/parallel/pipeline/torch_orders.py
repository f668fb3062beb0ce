"""Takes interleaved and zero-bubble schedules from `torch.distributed.pipelining`.

torch's schedule classes compute the order of all ranks (`pipeline_order`) when they are created. They read only a
few public attributes of the stages, so stand-ins without a module suffice. torch is imported only when a schedule
is requested.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.operations import Kind, Operation


def torch_order(
    name: str, torch_class: str, num_workers: int, stages_per_worker: int, num_micro_batches: int
) -> list[list[Operation]]:
    """Each worker's computations in order, as computed by torch's schedule class of the given name.

    `name` is Oakum's name of the schedule, for messages. Raises `ScheduleError` where torch refuses the numbers or
    is missing.
    """
    try:
        schedules = importlib.import_module("torch.distributed.pipelining.schedules")
    except ImportError as error:
        raise ScheduleError(
            f"the schedule {name!r} needs torch: run pip install '.[worker]' in Oakum's checkout"
        ) from error
    stages = [_stage(index, num_workers, stages_per_worker) for index in range(stages_per_worker)]
    try:
        order = getattr(schedules, torch_class)(stages, n_microbatches=num_micro_batches).pipeline_order
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
    """A stand-in for a stage of rank 0, with the attributes that torch's schedule classes read."""
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
