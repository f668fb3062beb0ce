"""The best evaluation by a metric, and the end of training where no better one follows.

Every rank records the value that rank 0 found, at the same step boundary, so all ranks keep the same checkpoint as
the best and end after the same step. What was recorded is part of the trainer's state. An evaluation that a lost
rank or the trainer's end kept from being recorded is still owed: it comes before the next step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

from oakum_worker.errors import TaskError
from oakum_worker.protocol import BestEvaluation
from oakum_worker.spec_options import EvaluateSpec


class MetricWatch:
    """Records evaluations by the metric `keep_best` of a spec's `evaluate`."""

    def __init__(self, spec: EvaluateSpec) -> None:
        assert spec.keep_best is not None
        self._metric = spec.keep_best
        self._spec = spec
        self.forget()

    def forget(self) -> None:
        """Begin anew, without any evaluation."""
        self.step = 0
        """The step boundary of the newest evaluation that was recorded; 0 before the first one."""
        self._best: float | None = None
        self._best_step = 0
        self._misses = 0
        """Evaluations since the best one."""

    def state_dict(self) -> dict[str, Any]:
        """What was recorded."""
        return {"step": self.step, "best": self._best, "best_step": self._best_step, "misses": self._misses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what another watch has recorded."""
        self.step, self._best = state["step"], state["best"]
        self._best_step, self._misses = state["best_step"], state["misses"]

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation; None before the first one."""
        if self._best is None:
            return None
        return BestEvaluation(metric=self._metric, value=self._best, step=self._best_step)

    @property
    def reason_to_end(self) -> str:
        """Why training ends now: too many evaluations in a row were not better. Empty while it goes on."""
        if self._spec.patience is None or self._misses < self._spec.patience:
            return ""
        since = f"since {self._best:.6g} after step {self._best_step}" if self._best is not None else "at all"
        better = "fallen" if self._spec.mode == "min" else "risen"
        evaluations = "1 evaluation" if self._misses == 1 else f"{self._misses} evaluations"
        return f"{self._metric} has not {better} in {evaluations}, {since}"

    def value_of(self, metrics: Mapping[str, float]) -> float:
        """The watched metric. Raises `TaskError` where it is missing."""
        if self._metric not in metrics:
            there = ", ".join(map(repr, metrics)) or "none"
            raise TaskError(
                f"evaluate returned no metric {self._metric!r}, by which the spec keeps the best checkpoint "
                f"(evaluate.keep_best); its metrics: {there}. Name one of them, or return it"
            )
        return metrics[self._metric]

    def record(self, step: int, value: float) -> bool:
        """Record the metric's value after `step`. Returns whether it is the best so far. An infinite value or NaN
        counts as no better one; it is warned of."""
        self.step = step
        if not math.isfinite(value):
            warnings.warn(
                f"{self._metric} was {value} after step {step}: it counts as no better value; look for a division "
                "by 0 in evaluate, or lower the learning rate",
                stacklevel=2,
            )
        elif self._best is None or (value < self._best if self._spec.mode == "min" else value > self._best):
            self._best, self._best_step, self._misses = value, step, 0
            return True
        self._misses += 1
        return False
