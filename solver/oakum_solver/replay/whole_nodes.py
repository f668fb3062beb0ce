"""Replays a log of slots once more with whole nodes only: what the same trainers have without parts of nodes."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from oakum_solver.errors import ProblemError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.parts import on_whole_nodes
from oakum_solver.problem import Curve, PlannedTrainer
from oakum_solver.replay.accounts import sample_worth
from oakum_solver.replay.engine import Progress, replay
from oakum_solver.replay.held_bundles import HeldBundles
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import WorkItem, Workload


def achieved_on_whole_nodes(
    log: HoleLog, workload: Workload, settings: ReplaySettings, progress: Progress | None = None
) -> float:
    """`ReplayResult.achieved` of the same trainers where each has all slots of a node or none, while all of them
    are idle. Of a node that has more slots than a trainer can use, it uses as many. Raises `ProblemError` where
    the log has no parts of nodes."""
    whole = on_whole_nodes(log)
    items = _fitting(whole, workload)
    if not whole.num_holes or not items:
        return 0.0
    result = replay(whole, Workload(items), dataclasses.replace(settings, learning=None), progress)
    worth = {item.trainer.id: sample_worth(settings.objective, item.trainer) for item in workload.items}
    return sum(outcome.samples * worth[outcome.name] for outcome in result.trainers)


def _fitting(log: HoleLog, workload: Workload) -> tuple[WorkItem, ...]:
    """The trainers on whole nodes, without those for which the machine has too few."""
    assert log.parts is not None
    largest = int(log.parts.slots.max())
    bundles = HeldBundles(log)
    items = []
    for item in workload.items:
        trainer = _on_whole_nodes(item.trainer, largest)
        with suppress(ProblemError):
            bundles.fitted(trainer)
            items.append(dataclasses.replace(item, trainer=trainer))
    return tuple(items)


def _on_whole_nodes(trainer: PlannedTrainer, largest: int) -> PlannedTrainer:
    """The trainer that takes whole nodes, of at most so many slots, also if it can use a part of one only."""

    def rate(slots: int) -> float:
        return trainer.curve.rate(trainer.fitting(min(slots, trainer.max_nodes)) or slots)

    points = tuple((slots, rate(slots)) for slots in range(1, trainer.max_nodes + 1))
    most = trainer.max_nodes + largest - 1
    return dataclasses.replace(trainer, curve=Curve(points), sizes=(), max_nodes=most, bundle="host")
