"""The example's classifier, slowed down for as long as a test disturbs it."""

from __future__ import annotations

from small_task import paced

from digits import classifier
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def task(spec: TrainerSpec, gate: str, step_s: float) -> Task:
    """A classifier whose steps take `step_s` longer until the file `gate` exists, so that nodes change while it
    trains."""
    return paced(classifier.task(spec), gate, step_s)
