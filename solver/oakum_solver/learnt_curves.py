"""The curves to plan with while trainers' speeds are learnt: what is measured at each size, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from oakum_solver.curves import Sample, curve_from_points, fit_curve, newcomer_curve
from oakum_solver.exploration import Exploration, explore
from oakum_solver.problem import Curve

WINDOW_S = 5.0
"""Seconds of undisturbed training that make one measurement."""
_KEPT_WINDOWS = 16


class RateWindow(NamedTuple):
    """One stretch of undisturbed training at one number of nodes: its seconds and its mean rate."""

    seconds: float
    samples_per_s: float


@dataclass(frozen=True)
class SizeRate:
    """What was measured of a trainer at one number of nodes."""

    nodes: int
    seconds: float = 0.0
    samples: float = 0.0
    """Samples trained in these seconds."""
    explored_s: float = 0.0
    """Part of `seconds` in which plans assumed a higher rate than the curve's, to have this size measured."""
    recent: tuple[RateWindow, ...] = ()
    """The newest measurement windows, newest last."""


def after_window(
    rates: Mapping[int, SizeRate], nodes: int, seconds: float, samples: float, exploration: Exploration
) -> SizeRate:
    """What is measured at `nodes` nodes after another window there. `rates`: size -> what was measured before, of
    the same trainer."""
    before = rates.get(nodes, SizeRate(nodes))
    trained_s = {size: rate.seconds for size, rate in rates.items()}
    budget = exploration.budget(trained_s, {size: rate.explored_s for size, rate in rates.items()})
    explored_s = 0.0
    if exploration.tries(nodes, trained_s, budget):
        explored_s = min(seconds, exploration.min_seconds - before.seconds)
    return SizeRate(
        nodes,
        before.seconds + seconds,
        before.samples + samples,
        before.explored_s + explored_s,
        (*before.recent[1 - _KEPT_WINDOWS :], RateWindow(seconds, samples / seconds)),
    )


@dataclass(frozen=True)
class Learner:
    """What is known of a trainer's speed."""

    min_nodes: int
    max_nodes: int
    prior: Curve | None
    """The curve that was given or predicted; None: there is none."""
    exploration: Exploration
    rates: tuple[SizeRate, ...] = ()
    """What was measured, the smallest size first."""

    @cached_property
    def curve(self) -> Curve | None:
        """The curve fitted to what was measured, else the prior; sizes that are worth exploring have a raised
        rate. None: nothing is known."""
        if self.prior is None and not self.rates:
            return None
        budget = self.exploration.budget(
            {rate.nodes: rate.seconds for rate in self.rates}, {rate.nodes: rate.explored_s for rate in self.rates}
        )
        return _fitted_and_raised(_samples(self.rates), self.prior, self.max_nodes, budget, self.exploration)


def learnt_curves(learners: Mapping[str, Learner]) -> dict[str, Curve]:
    """Trainer id -> the curve to plan with.

    A trainer of unknown speed, beside others of known speed, gets a curve that promises the best known rate per
    node at its minimum: with the default of one sample per second and node it would never get nodes and never be
    measured.
    """
    curves = {id_: curve for id_, each in learners.items() if (curve := each.curve) is not None}
    least = {id_: each.min_nodes for id_, each in learners.items()}
    best = max((curve.rate(least[id_]) / least[id_] for id_, curve in curves.items()), default=1.0)
    unknown = {id_: _unknown(each, best, alone=not curves) for id_, each in learners.items() if id_ not in curves}
    return curves | unknown


def _samples(rates: Iterable[SizeRate]) -> tuple[Sample, ...]:
    """The newest measurements of every size as samples for fitting a curve. Each is weighted so that together they
    stand for all seconds measured at that size."""
    return tuple(
        Sample(
            rate.nodes, window.samples_per_s, window.seconds * rate.seconds / sum(w.seconds for w in rate.recent)
        )
        for rate in rates
        for window in rate.recent
    )


@lru_cache(maxsize=1024)
def _fitted_and_raised(
    samples: tuple[Sample, ...], prior: Curve | None, max_nodes: int, budget: float, exploration: Exploration
) -> Curve:
    """Fit the curve and raise the rate of sizes to explore. Cached: plans are made every second, and
    measurements change every few seconds. Returns the curve to plan with."""
    return explore(fit_curve(samples, prior, max_nodes), max_nodes, budget, exploration)


def _unknown(learner: Learner, rate_per_node: float, *, alone: bool) -> Curve:
    if alone:
        return curve_from_points((), learner.max_nodes)
    return newcomer_curve(learner.min_nodes, learner.max_nodes, rate_per_node)
