"""Curves: what the planner is told of each trainer's scalability."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy.orm import Session

from oakum_service.config import Settings
from oakum_service.control.rates import measured_rates
from oakum_service.db.models import MeasuredRate, Trainer
from oakum_solver.curves import Sample, curve_from_points, fit_curve, newcomer_curve
from oakum_solver.exploration import Exploration, explore
from oakum_solver.problem import Curve
from oakum_worker.spec import TrainerSpec


def curves_to_plan_with(session: Session, trainers: Sequence[Trainer], settings: Settings) -> dict[str, Curve]:
    """Trainer id -> its curve: learnt where it was measured, else its spec's.

    Raised where a size is worth trying. A trainer without a curve that nobody has measured yet, beside others that
    are known, is promised its minimum of nodes: in the default's one sample per second and node, it would never
    get one and never be measured.
    """
    specs = {trainer.id: TrainerSpec.model_validate(trainer.spec) for trainer in trainers}
    if not settings.learns_curves:
        return {trainer: curve_from_points(spec.curve, spec.max_nodes) for trainer, spec in specs.items()}
    measured = measured_rates(session, list(specs))
    priors = {trainer.id: _prior(specs[trainer.id], trainer.progress) for trainer in trainers}
    known = {
        trainer: _learnt(spec, priors[trainer], measured.get(trainer, []), settings)
        for trainer, spec in specs.items()
        if priors[trainer] is not None or trainer in measured
    }
    best = max((curve.rate(specs[t].min_nodes) / specs[t].min_nodes for t, curve in known.items()), default=1.0)
    unknown = {t: _unknown(spec, best, alone=not known) for t, spec in specs.items() if t not in known}
    return known | unknown


def _samples(rows: Sequence[MeasuredRate]) -> tuple[Sample, ...]:
    """The newest windows of each size, as evidence for all the seconds that were measured there."""
    return tuple(
        Sample(row.nodes, rate, seconds * row.seconds / sum(recent_s for recent_s, _ in row.recent))
        for row in rows
        for seconds, rate in row.recent
    )


def _learnt(spec: TrainerSpec, prior: Curve | None, rows: Sequence[MeasuredRate], settings: Settings) -> Curve:
    exploration = settings.exploration
    budget = exploration.budget(
        {row.nodes: row.seconds for row in rows}, {row.nodes: row.explored_s for row in rows}
    )
    return _fitted_and_raised(_samples(rows), prior, spec.max_nodes, budget, exploration)


def _prior(spec: TrainerSpec, progress: Mapping[str, Any]) -> Curve | None:
    """The user's curve; where there is one for each type of nodes, that of the fastest.

    Without one it is what the worker predicts, as those of pipelines do.
    """
    given = [points for points in (spec.curve, *spec.curves_by_type.values()) if points]
    predicted = _rising(progress.get("predicted_curve", ()))
    curves = [Curve(points) for points in given or ([predicted] if predicted else [])]
    return max(curves, key=lambda curve: curve.rate(spec.min_nodes), default=None)


def _rising(points: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Those that rise above all before them: an agent may say anything."""
    found: list[tuple[int, float]] = []
    for nodes, rate in points:
        before = found[-1] if found else (0, 0.0)
        if nodes > before[0] and before[1] < rate < math.inf:
            found.append((nodes, rate))
    return tuple(found)


@lru_cache(maxsize=1024)
def _fitted_and_raised(
    samples: tuple[Sample, ...], prior: Curve | None, max_nodes: int, budget: float, exploration: Exploration
) -> Curve:
    """Remembered, as a planning turn comes every second, and a new measurement every few."""
    return explore(fit_curve(samples, prior, max_nodes), max_nodes, budget, exploration)


def _unknown(spec: TrainerSpec, rate_per_node: float, *, alone: bool) -> Curve:
    if alone:
        return curve_from_points((), spec.max_nodes)
    return newcomer_curve(spec.min_nodes, spec.max_nodes, rate_per_node)
