"""Schedules by name, for D workers and N micro-batches: one record per name, with its properties.

| name | stages on a worker | bubble ratio | micro-batches that a worker holds at once |
|---|---|---|---|
| gpipe | 1 | (D-1)/(N+D-1) | N |
| 1f1b | 1 | (D-1)/(N+D-1) | 1 to D |
| interleaved | v, each 1/v as large | (D-1)/(vN+D-1) | up to (v+1)D - 1, of one such stage |
| zero-bubble | v | (D-1)/(3vN+D-1) for B = 2F | vD, of one such stage |
| zero-bubble-v | 2, first and last on worker 0 | as zero-bubble, from N = 2D-1 on | 2D, of one such stage |
| chimera | 2f, one of each pipe | (D-2f)/(2fN+D-2f) for B = F | D-D/2f+1 to D |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.pipeline import chimera as chimeras
from oakum_worker.parallel.pipeline import formulas
from oakum_worker.parallel.pipeline.chimera import chimera
from oakum_worker.parallel.pipeline.communication import with_communication
from oakum_worker.parallel.pipeline.formulas import Formula, FormulaTerms
from oakum_worker.parallel.pipeline.operations import Kind, Operation, Schedule
from oakum_worker.parallel.pipeline.torch_orders import torch_order
from oakum_worker.schedule_table import (
    CHIMERA,
    GPIPE,
    INTERLEAVED,
    NAMES,
    ONE_F_ONE_B,
    WITH_MORE_STAGES,
    ZERO_BUBBLE,
    ZERO_BUBBLE_V,
    ScheduleTraits,
    Scheme,
)

Placement = tuple[tuple[int, ...], ...]
"""For each pipe, the worker of each stage."""
_SCHEMES: tuple[Scheme, ...] = ("concatenation", "forward-doubling", "backward-halving")


@dataclass(frozen=True, slots=True)
class ScheduleSize:
    """The numbers of workers, stages and micro-batches of a schedule, and the times of its passes."""

    num_workers: int
    num_micro_batches: int
    stages_per_worker: int = 1
    """Number of stages of one pipe on each worker."""
    num_pipes: int = 1
    scheme: Scheme = "auto"
    forward: float = 1.0
    """Time of one micro-batch's forward pass through one stage, in the same unit as `backward`."""
    backward: float = 2.0


@dataclass(frozen=True, slots=True)
class ScheduleKind:
    """What is known of the schedules of one name: how to build them, where they place stages, and formulas for
    their idle time and memory."""

    traits: ScheduleTraits
    """What is known of the schedule without building it."""
    build: Callable[[ScheduleTraits, ScheduleSize], Schedule]
    """Builds the schedule of a size. Raises `ScheduleError` if there is none."""
    placement: Callable[[ScheduleSize], Placement]
    bubble: Callable[[FormulaTerms], Formula | None]
    """The bubble ratio; None where no formula is known."""
    exists: Callable[[ScheduleSize], bool] = lambda size: True
    """Whether `build` can build a schedule of this size, told without building it."""
    activations: Callable[[FormulaTerms], tuple[int, int]] | None = None
    """Micro-batches whose activations a worker holds at its peak: (of the worker with the fewest, of the one with
    the most); None where no formula is known."""
    schemes: tuple[Scheme | None, ...] = (None,)
    """Ways to schedule more micro-batches than workers; `(None,)` for a schedule of one pipe."""


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
    """The schedule of this name for one replica.

    `stages_per_worker` is for `interleaved` (default 2), `zero-bubble` (default 1) and `zero-bubble-v`.
    `num_pipes` and `scheme` are for `chimera`; with the scheme `auto` it takes the fastest one for the times
    `forward` and `backward` of one micro-batch in one stage. Raises `ScheduleError` if there is no such schedule.
    """
    kind = kind_of(name)
    if num_workers < 1 or num_micro_batches < 1:
        raise ScheduleError(
            f"{num_micro_batches} micro-batches on {num_workers} workers make no schedule: give at least 1 of each"
        )
    if not kind.traits.has_more_stages and stages_per_worker not in (None, 1):
        raise ScheduleError(
            f"{name} has one stage of a pipe on each worker, not {stages_per_worker}: choose "
            f"one of {', '.join(WITH_MORE_STAGES)}"
        )
    per_worker = stages_per_worker or kind.traits.stages_per_worker
    size = ScheduleSize(num_workers, num_micro_batches, per_worker, num_pipes, scheme, forward, backward)
    return kind.build(kind.traits, size)


def exists(
    name: str, num_workers: int, num_micro_batches: int, scheme: Scheme | None = None, num_pipes: int = 2
) -> bool:
    """Whether `build` can build the schedule of this name for these numbers; found out without building it. False
    for an unknown name."""
    if num_workers < 1 or num_micro_batches < 1 or name not in SCHEDULES:
        return False
    size = ScheduleSize(num_workers, num_micro_batches, num_pipes=num_pipes, scheme=scheme or "auto")
    return SCHEDULES[name].exists(size)


def kind_of(name: str) -> ScheduleKind:
    """The record of a schedule's name. Raises `ScheduleError` for an unknown name."""
    if name not in SCHEDULES:
        raise ScheduleError(f"there is no schedule {name!r}: choose one of {', '.join(NAMES)}")
    return SCHEDULES[name]


def _one_pipe(
    num_first: Callable[[ScheduleSize, int], int], traits: ScheduleTraits, size: ScheduleSize
) -> Schedule:
    """A schedule in which each stage starts with `num_first(size, stage)` forward passes, then alternates backward
    and forward passes, and ends with the remaining backward passes."""
    order = [
        _one_stage(stage, size.num_micro_batches, num_first(size, stage)) for stage in range(size.num_workers)
    ]
    return with_communication(traits.name, size.num_micro_batches, _round_robin(size), order)


def _one_stage(stage: int, num_micro_batches: int, num_first: int) -> list[Operation]:
    forwards = [Operation(Kind.FORWARD, stage, 0, (number,)) for number in range(num_micro_batches)]
    backwards = [Operation(Kind.BACKWARD, stage, 0, (number,)) for number in range(num_micro_batches)]
    order = forwards[:num_first]
    for backward, following in zip(backwards, forwards[num_first:], strict=False):
        order += [backward, following]
    return order + backwards[num_micro_batches - num_first :]


def _all_forwards_first(size: ScheduleSize, stage: int) -> int:
    return size.num_micro_batches


def _as_many_as_stages_are_left(size: ScheduleSize, stage: int) -> int:
    return min(size.num_workers - stage, size.num_micro_batches)


def _torchs(
    placement: Callable[[ScheduleSize], Placement], traits: ScheduleTraits, size: ScheduleSize
) -> Schedule:
    order = torch_order(
        traits.name, traits.torch_class, size.num_workers, size.stages_per_worker, size.num_micro_batches
    )
    return with_communication(traits.name, size.num_micro_batches, placement(size), order)


def _chimera(_: ScheduleTraits, size: ScheduleSize) -> Schedule:
    return chimera(
        size.num_workers,
        size.num_micro_batches,
        num_pipes=size.num_pipes,
        scheme=size.scheme,
        forward=size.forward,
        backward=size.backward,
    )


def _round_robin(size: ScheduleSize) -> Placement:
    """Stage s is on worker s modulo the number of workers."""
    return (tuple(range(size.num_workers)) * size.stages_per_worker,)


def _there_and_back(size: ScheduleSize) -> Placement:
    """The stages go from worker 0 to the last worker and back, so worker 0 has the first and the last stage."""
    there = tuple(range(size.num_workers))
    return (there + there[::-1],)


def _in_pipes(size: ScheduleSize) -> Placement:
    return chimeras.placement(size.num_workers, size.num_pipes)


def _comes_in_whole_rounds(size: ScheduleSize) -> bool:
    number = size.num_micro_batches
    return number % max(1, number // size.num_workers) == 0


def _chimera_exists(size: ScheduleSize) -> bool:
    halving = size.scheme == "backward-halving"
    return (
        size.num_workers % size.num_pipes == 0
        and size.num_micro_batches >= size.num_pipes + 2 * halving
        and not (halving and size.num_micro_batches % 2)
        and (size.num_pipes == 2 or size.scheme in ("auto", "concatenation"))
    )


_KINDS = (
    ScheduleKind(
        GPIPE,
        partial(_one_pipe, _all_forwards_first),
        _round_robin,
        formulas.one_pipe_bubble,
        activations=formulas.gpipe_activations,
    ),
    ScheduleKind(
        ONE_F_ONE_B,
        partial(_one_pipe, _as_many_as_stages_are_left),
        _round_robin,
        formulas.one_pipe_bubble,
        activations=formulas.one_f_one_b_activations,
    ),
    ScheduleKind(
        INTERLEAVED,
        partial(_torchs, _round_robin),
        _round_robin,
        formulas.interleaved_bubble,
        exists=_comes_in_whole_rounds,
    ),
    ScheduleKind(
        ZERO_BUBBLE,
        partial(_torchs, _round_robin),
        _round_robin,
        formulas.zero_bubble,
        exists=_comes_in_whole_rounds,
    ),
    ScheduleKind(
        ZERO_BUBBLE_V,
        partial(_torchs, _there_and_back),
        _there_and_back,
        formulas.zero_bubble_v,
    ),
    ScheduleKind(
        CHIMERA,
        _chimera,
        _in_pipes,
        formulas.chimera_bubble,
        exists=_chimera_exists,
        activations=formulas.chimera_activations,
        schemes=_SCHEMES,
    ),
)
SCHEDULES: dict[str, ScheduleKind] = {kind.traits.name: kind for kind in _KINDS}
