"""Schedules by name, of D workers and N micro-batches.

| name | stages on a worker | bubble ratio | micro-batches that a worker holds at once |
|---|---|---|---|
| gpipe | 1 | (D-1)/(N+D-1) | N |
| 1f1b | 1 | (D-1)/(N+D-1) | 1 to D |
| interleaved | v, each 1/v as large | (D-1)/(vN+D-1) | up to (v+1)D - 1 of such |
| zero-bubble | v | (D-1)/(3vN+D-1) for B = 2F | vD of such |
| zero-bubble-v | 2, the first and the last on worker 0 | the same from N = 2D - 1 on | 2D of such |
| chimera | 2f, one of each pipe | (D-2f)/(2fN+D-2f) for B = F | D-D/2f+1 to D |
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline.chimera import Scheme, chimera
from oakum_worker.parallel.pipeline.communication import with_communication
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.torch_orders import torch_order

Name = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zero-bubble-v", "chimera"]
NAMES: tuple[Name, ...] = get_args(Name)


@lru_cache(maxsize=256)
def build(
    name: str,
    *,
    num_workers: int,
    num_micro_batches: int,
    stages_per_worker: int | None = None,
    num_pipes: int = 2,
    scheme: Scheme = "auto",
    forward: float = 1.0,
    backward: float = 2.0,
) -> Schedule:
    """The schedule of that name for one replica.

    `stages_per_worker` is for `interleaved` (by default 2) and `zero-bubble` (1); `num_pipes` and `scheme` are for
    `chimera`, which takes the fastest of what it may choose from for these times of one micro-batch through one
    stage. Raises `ScheduleError` for what does not exist.
    """
    if name not in NAMES:
        raise ScheduleError(f"there is no schedule {name!r}: choose one of {', '.join(NAMES)}")
    if num_workers < 1 or num_micro_batches < 1:
        raise ScheduleError(
            f"{num_micro_batches} micro-batches on {num_workers} workers make no schedule: give at least 1 of each"
        )
    if name in ("gpipe", "1f1b", "chimera") and stages_per_worker not in (None, 1):
        raise ScheduleError(
            f"{name} has one stage of a pipe on each worker, not {stages_per_worker}: choose interleaved"
        )
    if name == "chimera":
        return chimera(
            num_workers,
            num_micro_batches,
            num_pipes=num_pipes,
            scheme=scheme,
            forward=forward,
            backward=backward,
        )
    per_worker = stages_per_worker or {"interleaved": 2, "zero-bubble-v": 2}.get(name, 1)
    if name in ("gpipe", "1f1b"):
        order = [_one_pipe(name, worker, num_workers, num_micro_batches) for worker in range(num_workers)]
    else:
        order = torch_order(name, num_workers, per_worker, num_micro_batches)
    return with_communication(name, num_micro_batches, [_placement(name, num_workers, per_worker)], order)


def exists(
    name: str, num_workers: int, num_micro_batches: int, scheme: Scheme | None = None, num_pipes: int = 2
) -> bool:
    """Whether `build` has that schedule; found out without building it."""
    if num_workers < 1 or num_micro_batches < 1:
        return False
    if name in ("interleaved", "zero-bubble"):
        return num_micro_batches % max(1, num_micro_batches // num_workers) == 0
    if name == "chimera":
        halving = scheme == "backward-halving"
        return (
            num_workers % num_pipes == 0
            and num_micro_batches >= num_pipes + 2 * halving
            and not (halving and num_micro_batches % 2)
            and (num_pipes == 2 or scheme in (None, "auto", "concatenation"))
        )
    return name in NAMES


def splits_backward(name: str) -> bool:
    """Whether all its backward passes come in two parts."""
    return name in ("zero-bubble", "zero-bubble-v")


def _one_pipe(name: str, stage: int, num_stages: int, num_micro_batches: int) -> list[Operation]:
    """GPipe: all forwards, then all backwards. 1F1B: as many forwards as stages are left, then one of each."""
    num_first = num_micro_batches if name == "gpipe" else min(num_stages - stage, num_micro_batches)
    forwards = [Operation(Kind.FORWARD, stage, 0, (number,)) for number in range(num_micro_batches)]
    backwards = [Operation(Kind.BACKWARD, stage, 0, (number,)) for number in range(num_micro_batches)]
    order = forwards[:num_first]
    for backward, following in zip(backwards, forwards[num_first:], strict=False):
        order += [backward, following]
    return order + backwards[num_micro_batches - num_first :]


def _placement(name: str, num_workers: int, stages_per_worker: int) -> tuple[int, ...]:
    """The worker of each stage: round after round, or for `zero-bubble-v` there and back."""
    there = tuple(range(num_workers))
    if name == "zero-bubble-v":
        return there + there[::-1]
    return there * stages_per_worker
