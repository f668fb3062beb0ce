"""The scalability curves that the planner gets for the trainers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control.rates import measured_rates, size_rate
from oakum_service.db.models.trainers import Trainer
from oakum_solver.curves import curve_from_points
from oakum_solver.learnt_curves import Learner, learnt_curves
from oakum_solver.problem import Curve
from oakum_worker.protocol import TrainingProgress
from oakum_worker.spec import TrainerSpec


def curves_to_plan_with(session: Session, trainers: Sequence[Trainer], settings: Settings) -> dict[str, Curve]:
    """Trainer id -> its curve: learnt from measured rates, or with the setting `learn_curves` off the spec's."""
    specs = {trainer.id: trainer.spec for trainer in trainers}
    if not settings.learns_curves:
        return {trainer_id: curve_from_points(spec.curve, spec.max_nodes) for trainer_id, spec in specs.items()}
    measured = measured_rates(session, list(specs))
    learners = {
        trainer.id: Learner(
            min_nodes=specs[trainer.id].min_nodes,
            max_nodes=specs[trainer.id].max_nodes,
            prior=_prior(specs[trainer.id], trainer.progress),
            exploration=settings.exploration,
            rates=tuple(map(size_rate, measured.get(trainer.id, ()))),
        )
        for trainer in trainers
    }
    return learnt_curves(learners)


def _prior(spec: TrainerSpec, progress: TrainingProgress | None) -> Curve | None:
    """The spec's curve, of several node types that of the fastest; without one the worker's prediction, as
    pipelines have; else None."""
    own_curves = [points for points in (spec.curve, *spec.curves_by_type.values()) if points]
    # Where nodes are given in parts it is over ranks, and each slot has one.
    predicted = _rising(() if progress is None else progress.predicted_curve)
    curves = [Curve(points) for points in own_curves or ([predicted] if predicted else [])]
    return max(curves, key=lambda curve: curve.rate(spec.min_nodes), default=None)


def _rising(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """The points that rise above all before them. Agents' reports are not trusted to be a valid curve."""
    rising: list[tuple[int, float]] = []
    for nodes, rate in points:
        before = rising[-1] if rising else (0, 0.0)
        if nodes > before[0] and before[1] < rate < math.inf:
            rising.append((nodes, rate))
    return tuple(rising)
