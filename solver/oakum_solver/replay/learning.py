"""Replays a log with curves that have to be learnt, beside the replay in which they are known.

The rules are the service's: `learnt_curves`, `exploration` and `speed_trials`. Beside each plan that is made with
learnt curves stands the plan that the true curves would have given in the same situation; what the first is worth
by the true curves, relative to the second, tells how far the plans are from those of somebody who knows.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oakum_solver.learnt_curves import learnt_curves
from oakum_solver.plan import Plan
from oakum_solver.problem import NodeGroup, PlannedTrainer, Problem
from oakum_solver.replay.rate_book import RateBook
from oakum_solver.solve import Policy, solve
from oakum_solver.speed_trials import is_tried, with_trials
from oakum_solver.verify import worth_of

AS_KNOWN = 0.99
"""A plan is as good as that of the true curves if it is worth this part of it."""
_STRETCH_S = 3600.0
_NEARLY_ALWAYS = 0.95


def with_learnt_curves(
    trainers: tuple[PlannedTrainer, ...],
    books: Sequence[RateBook],
    had_node_s: Sequence[float],
    groups: Sequence[NodeGroup],
) -> tuple[PlannedTrainer, ...]:
    """The trainers as a planner sees them that knows only what `books` have measured. `had_node_s`: node-seconds
    that each has had."""
    curves = learnt_curves({t.id: book.learner for t, book in zip(trainers, books, strict=True)})
    unknown = {
        trainer.id
        for trainer, book, had_s in zip(trainers, books, had_node_s, strict=True)
        if not book.rates and not is_tried(trainer.min_nodes, had_s)
    }
    seen = tuple(dataclasses.replace(trainer, curve=curves[trainer.id]) for trainer in trainers)
    return with_trials(seen, unknown, groups)


@dataclass
class Comparison:
    """Plans made with learnt curves, beside those of the true ones."""

    time_s: list[float] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)
    """What each plan is worth by the true curves."""
    best: list[float] = field(default_factory=list)
    """What the plan of the true curves is worth."""

    def note(self, now_s: float, known: Problem, plan: Plan, policy: Policy) -> None:
        """Compare a plan with that of the problem `known`, which differs in its curves: they are the true ones."""
        self.time_s.append(now_s)
        self.worth.append(worth_of(known, plan))
        self.best.append(solve(known, policy, explained=False).value)

    def settled_after_s(self, end_s: float) -> float:
        """Seconds after which, for an hour, the plan in force is nearly always as good as that of the true curves;
        of a log below four hours, for a quarter of it. Infinite where that never happens."""
        if not self.time_s:
            return math.inf
        time_s, lasting_s = np.array(self.time_s), self._lasting_s(end_s)
        stretch_s = min(_STRETCH_S, (end_s - time_s[0]) / 4)
        good_s = np.append(0.0, np.cumsum(np.where(self._is_good, lasting_s, 0.0)))
        ends = np.searchsorted(time_s, time_s + stretch_s)
        span_s = np.append(time_s, end_s)[ends] - time_s
        settled = (good_s[ends] - good_s[:-1] >= _NEARLY_ALWAYS * span_s) & (time_s + stretch_s <= end_s)
        return float(time_s[np.argmax(settled)]) if settled.any() else math.inf

    def share_as_known(self, end_s: float) -> float:
        """Share of the time in which the plan in force was as good as that of the true curves."""
        lasting_s = self._lasting_s(end_s)
        return float(lasting_s[self._is_good].sum() / lasting_s.sum()) if lasting_s.sum() > 0 else math.nan

    @property
    def _is_good(self) -> NDArray[np.bool_]:
        """For each plan whether it is as good as that of the true curves."""
        return np.array(self.worth) >= AS_KNOWN * np.array(self.best)

    def _lasting_s(self, end_s: float) -> NDArray[np.float64]:
        """For how many seconds each plan was in force."""
        return np.diff(np.append(np.array(self.time_s), end_s))
