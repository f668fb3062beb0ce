"""Tasks of trainers that train over a star: those of other tests, in a module that registers the strategy."""

from __future__ import annotations

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task
from star import strategy
from training_ranks import build_task

NAME = strategy.STAR.name


def points() -> Task:
    """A regression in float64 with Adam and a schedule."""
    return build_task()


def paced(spec: TrainerSpec, gate: str, step_s: float) -> Task:
    """See `small_task.paced_task`."""
    from small_task import paced_task

    return paced_task(spec, gate, step_s)
