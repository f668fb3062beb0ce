"""The scalability curves that the planner gets for the trainers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control.rates import measured_rates
from oakum_service.db.models.progress import MeasuredRate
from oakum_service.db.models.trainers import Trainer
from oakum_solver.curves import Sample, curve_from_points, fit_curve, newcomer_curve
from oakum_solver.exploration import Exploration, explore
from oakum_solver.problem import Curve
from oakum_worker.protocol import TrainingProgress
from oakum_worker.spec import TrainerSpec


def curves_to_plan_with(session: Session, trainers: Sequence[Trainer], settings: Settings) -> dict[str, Curve]:
    """Trainer id -> its curve: learnt from measured rates where there are some, otherwise the spec's.

    A size that is worth exploring gets a raised rate. A trainer of unknown speed, beside others of known speed,
    gets a curve that promises the best known rate per node at its minimum: with the default of one sample per
    second and node it would never get nodes and never be measured.
    """
    specs = {trainer.id: trainer.spec for trainer in trainers}
    if not settings.learns_curves:
        return {trainer_id: curve_from_points(spec.curve, spec.max_nodes) for trainer_id, spec in specs.items()}
    measured = measured_rates(session, list(specs))
    priors = {trainer.id: _prior(specs[trainer.id], trainer.progress) for trainer in trainers}
    curves = {
        trainer_id: _learnt(spec, priors[trainer_id], measured.get(trainer_id, []), settings)
        for trainer_id, spec in specs.items()
        if priors[trainer_id] is not None or trainer_id in measured
    }
    best = max((curve.rate(specs[t].min_nodes) / specs[t].min_nodes for t, curve in curves.items()), default=1.0)
    unknown = {t: _unknown(spec, best, alone=not curves) for t, spec in specs.items() if t not in curves}
    return curves | unknown


def _samples(rows: Sequence[MeasuredRate]) -> tuple[Sample, ...]:
    """The newest measurements of every size as samples for fitting a curve. Each is weighted so that together they
    stand for all seconds measured at that size."""
    return tuple(
        Sample(row.nodes, window.samples_per_s, window.seconds * row.seconds / sum(w.seconds for w in row.recent))
        for row in rows
        for window in row.recent
    )


def _learnt(spec: TrainerSpec, prior: Curve | None, rows: Sequence[MeasuredRate], settings: Settings) -> Curve:
    exploration = settings.exploration
    budget = exploration.budget(
        {row.nodes: row.seconds for row in rows}, {row.nodes: row.explored_s for row in rows}
    )
    return _fitted_and_raised(_samples(rows), prior, spec.max_nodes, budget, exploration)


def _prior(spec: TrainerSpec, progress: TrainingProgress | None) -> Curve | None:
    """The spec's curve, of several node types that of the fastest; without one the worker's prediction, as
    pipelines have; else None."""
    own_curves = [points for points in (spec.curve, *spec.curves_by_type.values()) if points]
    # A worker predicts for numbers of fragments.
    of_fragment = 0 if spec.slots_per_fragment == "node" else spec.slots_per_fragment
    predicted = _rising(() if progress is None or not of_fragment else progress.predicted_curve)
    predicted = tuple((of_fragment * fragments, rate) for fragments, rate in predicted)
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


@lru_cache(maxsize=1024)
def _fitted_and_raised(
    samples: tuple[Sample, ...], prior: Curve | None, max_nodes: int, budget: float, exploration: Exploration
) -> Curve:
    """Fit the curve and raise the rate of sizes to explore. Cached: plans are made every second, and
    measurements change every few seconds. Returns the curve to plan with."""
    return explore(fit_curve(samples, prior, max_nodes), max_nodes, budget, exploration)


def _unknown(spec: TrainerSpec, rate_per_node: float, *, alone: bool) -> Curve:
    if alone:
        return curve_from_points((), spec.max_nodes)
    return newcomer_curve(spec.min_nodes, spec.max_nodes, rate_per_node)
