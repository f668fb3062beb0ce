"""Trainers as a site's users submit them, made of a replay's workload."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from pydantic import ValidationError

from oakum_solver.errors import ProblemError
from oakum_solver.replay.workload import WorkItem, Workload
from oakum_worker.spec import TrainerSpec
from twin.virtual_time import BEGINS_AT

_STEP_S = 0.25
"""About how long a step takes on a trainer's fewest nodes."""


def specs_of(workload: Workload) -> list[TrainerSpec]:
    """A spec for each trainer of the workload. Raises `ProblemError` for one that the service would not take."""
    specs: list[TrainerSpec] = []
    taken: set[str] = set()
    for item in workload.items:
        try:
            specs.append(_spec(item, _name(item.trainer.id, taken)))
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"])) or "spec"
            raise ProblemError(f"trainer {item.trainer.id}: {where}: {fault['msg']}") from error
        taken.add(specs[-1].name)
    return specs


def _name(label: str, taken: set[str]) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:40] or "trainer"
    return name if name not in taken else f"{name}-{len(taken) + 1}"


def _spec(item: WorkItem, name: str) -> TrainerSpec:
    trainer = item.trainer
    deadline = None
    if trainer.deadline_in_s < math.inf:
        deadline = datetime.fromtimestamp(BEGINS_AT + item.submit_s + trainer.deadline_in_s, UTC)
    given = {
        "name": name,
        "entrypoint": "twin:task",
        "global_batch": max(trainer.max_nodes, round(_STEP_S * trainer.curve.rate(trainer.min_nodes)), 1),
        "epochs": 1,
        "min_nodes": trainer.min_nodes,
        "max_nodes": trainer.max_nodes,
        "curve": trainer.curve.points,
        "weight": trainer.weight,
        "priority": trainer.priority,
        "deadline": deadline,
    }
    return TrainerSpec.model_validate(given | ({"sizes": trainer.sizes} if trainer.sizes else {}))
