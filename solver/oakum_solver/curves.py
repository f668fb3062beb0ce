"""Scalability curves: given by a user, assumed where nobody gave one, and learnt from measured rates.

A learnt curve has two sources. Where a size was measured, the measurement rules in proportion to its seconds;
everywhere else the step-time model (`step_time`) does, which all measurements and, weakly, the shape of the user's
curve have formed:

    rate(n) = model(n) * r(n),    r = blended / model at measured sizes, log-linear in log2 n between, level beyond
    blended(n) = isotonic regression over the measured n of  w m(n) + (1 - w) model(n),    w = s / (s + 10)

with m(n) the median of the rates measured at n, and s the seconds over which they were taken. How sure it is:

    std(n) / rate(n) = sqrt( scatter^2 (1 - w) + (0.1 d)^2 )

with d the distance of n from the nearest measured size, in doublings, w that size's, and scatter the spread of the
measurements around the curve (1.4826 times their median absolute deviation, at least 2 %).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from oakum_solver.errors import ProblemError
from oakum_solver.problem import Curve
from oakum_solver.step_time import Floats, StepTime, fit_step_time

PRIOR_S = 30.0
"""Seconds of evidence that a user's curve is worth, shared among its points."""
_GUESS_S = 1.0
"""The same for a curve that is linear because nobody gave one."""
_HALF_BELIEVED_S = 10.0
"""Seconds of measurement at which a size's own rate counts as much as the model's."""
_SPREAD_PER_DOUBLING = 0.1
_LEAST_SCATTER = 0.02
_UNMEASURED = 0.5
"""Relative standard deviation of a curve that nobody has measured anywhere."""
_EVERY_SIZE_TO = 32
_SIZES_PER_DOUBLING = 8


def linear_curve(max_nodes: int, rate_per_node: float = 1.0) -> Curve:
    """The curve of a trainer that gave none: every node up to `max_nodes` adds the same samples/s.

    The default of one sample per second is no more than a unit: among trainers without curves it splits the
    nodes evenly in worth, and it says nothing against a measured curve except under `Objective.SPEEDUP`.
    """
    return Curve(((max_nodes, rate_per_node * max_nodes),))


def curve_from_points(points: Iterable[tuple[int, float]], max_nodes: int) -> Curve:
    """The curve through a spec's points (nodes, samples/s), in any order; linear where there are none.

    Raises `ProblemError` where the points contradict each other.
    """
    given = tuple(sorted((nodes, float(rate)) for nodes, rate in points))
    return Curve(given) if given else linear_curve(max_nodes)


def newcomer_curve(min_nodes: int, max_nodes: int, rate_per_node: float) -> Curve:
    """The curve of a trainer that nobody knows, beside trainers that are known: at its minimum as good as a rate
    of `rate_per_node` promises, so that it gets there and is measured; beyond, it takes what nobody else wants.
    """
    rate = rate_per_node * min_nodes
    if max_nodes == min_nodes:
        return Curve(((min_nodes, rate),))
    return Curve(((min_nodes, rate), (max_nodes, rate + max_nodes - min_nodes)))


@dataclass(frozen=True)
class Sample:
    """A measured rate: the mean over a time of undisturbed training, no rescale in it.

    Raises `ProblemError` unless all three are finite and above 0.
    """

    nodes: int
    rate: float
    """Samples/s."""
    seconds: float
    """How long it was measured."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 0 < self.rate < math.inf or not 0 < self.seconds < math.inf:
            raise ProblemError(
                f"measured {self.rate} samples/s on {self.nodes} nodes over {self.seconds} s: expected at least "
                "one node, and a rate and seconds that are finite and above 0"
            )


@dataclass(frozen=True)
class FittedCurve:
    """A learnt curve, and how sure it is at each size."""

    curve: Curve
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Size -> seconds over which it was measured."""
    scatter: float = _UNMEASURED
    """Relative standard deviation of the measurements around the curve."""

    @property
    def measured(self) -> frozenset[int]:
        """Sizes that were measured."""
        return frozenset(self.seconds)

    def std(self, nodes: int) -> float:
        """Standard deviation of the rate at `nodes` nodes, in samples/s; the formula is the module's."""
        if not self.seconds or nodes < 1:
            return self.scatter * self.curve.rate(nodes)
        doublings, nearest = min((abs(math.log2(nodes / size)), size) for size in self.seconds)
        doubt = 1.0 - _belief(self.seconds[nearest])
        return self.curve.rate(nodes) * math.hypot(
            self.scatter * math.sqrt(doubt), _SPREAD_PER_DOUBLING * doublings
        )

    def low(self, nodes: int) -> float:
        """Samples/s that the rate is hardly below: two standard deviations down."""
        return max(0.0, self.curve.rate(nodes) - 2.0 * self.std(nodes))

    def high(self, nodes: int) -> float:
        """Samples/s that the rate is hardly above: two standard deviations up."""
        return self.curve.rate(nodes) + 2.0 * self.std(nodes)


def fit_curve(samples: Sequence[Sample], prior: Curve | None, max_nodes: int) -> FittedCurve:
    """The curve that measurements show, up to `max_nodes`.

    `prior` is the user's curve. Without measurements it is the answer; with them it is worth 30 s of evidence on
    the curve's shape, whatever its unit. Without a prior a linear one is assumed, worth 1 s.
    Several samples of one size are one measurement, their median weighted by seconds: one that other work on the
    node has disturbed changes little.
    """
    sizes = _by_size(samples)
    given = prior is not None and prior.points[-1][1] > 0  # one that is 0 everywhere says nothing
    shape = prior if prior is not None and given else linear_curve(max_nodes)
    if not sizes:
        return FittedCurve(shape)
    believed = _prior_samples(sizes, shape, max_nodes, PRIOR_S if given else _GUESS_S)
    model = _fit_model(sizes + believed)
    curve = _blend(sizes, model, max_nodes)
    misses = [Sample(s.nodes, 1.0 + abs(s.rate / curve.rate(s.nodes) - 1.0), s.seconds) for s in samples]
    scatter = max(_LEAST_SCATTER, 1.4826 * (_median_rate(misses) - 1.0))
    return FittedCurve(curve, {size.nodes: size.seconds for size in sizes}, scatter)


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The rising sequence nearest to `values` in weighted squares, by pooling adjacent violators.

    Ayer et al., Annals of Mathematical Statistics 26(4), 1955.
    """
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v0, w0, n0), (v1, w1, n1) = pools[-2:]
            pools[-2:] = [((w0 * v0 + w1 * v1) / (w0 + w1), w0 + w1, n0 + n1)]
    return np.repeat([value for value, _, _ in pools], [length for _, _, length in pools])


def _belief(seconds: float) -> float:
    """w: the weight of a size's own measurements against the model."""
    return seconds / (seconds + _HALF_BELIEVED_S)


def _by_size(samples: Iterable[Sample]) -> list[Sample]:
    """One sample for each size, the smallest first: the median rate over all seconds."""
    ordered = sorted(samples, key=lambda sample: sample.nodes)
    groups = [list(group) for _, group in itertools.groupby(ordered, key=lambda sample: sample.nodes)]
    return [Sample(group[0].nodes, _median_rate(group), sum(s.seconds for s in group)) for group in groups]


def _median_rate(samples: Iterable[Sample]) -> float:
    """The rate below which half of the seconds lie."""
    ordered = sorted(samples, key=lambda sample: sample.rate)
    reached = itertools.accumulate(sample.seconds for sample in ordered)
    half = sum(sample.seconds for sample in ordered) / 2
    return next((s.rate for s, seconds in zip(ordered, reached, strict=True) if seconds >= half), ordered[-1].rate)


def _prior_samples(sizes: list[Sample], prior: Curve, max_nodes: int, seconds: float) -> list[Sample]:
    """The prior's points in the measurements' unit: raised by as much as they exceed it where they are."""
    ratios = [Sample(s.nodes, s.rate / prior.rate(s.nodes), s.seconds) for s in sizes if prior.rate(s.nodes) > 0]
    unit = _median_rate(ratios) if ratios else 0.0
    points = [(nodes, rate * unit) for nodes, rate in prior.points if nodes <= max_nodes]
    if len(points) < 2:
        points = [(nodes, prior.rate(nodes) * unit) for nodes in sorted({1, max_nodes})]
    return [Sample(nodes, rate, seconds / len(points)) for nodes, rate in points if rate > 0]


def _fit_model(samples: list[Sample]) -> StepTime:
    return fit_step_time(
        np.array([sample.nodes for sample in samples], dtype=np.float64),
        np.array([sample.rate for sample in samples]),
        np.array([sample.seconds for sample in samples]),
    )


def _blend(sizes: list[Sample], model: StepTime, max_nodes: int) -> Curve:
    """The module's formula on a grid of sizes, with no size above the next measured one nor below the last."""
    known = np.array([size.nodes for size in sizes], dtype=np.float64)
    measured = np.array([size.rate for size in sizes])
    seconds = np.array([size.seconds for size in sizes])
    believed = np.array([_belief(size.seconds) for size in sizes])
    modelled = model.rates(known)
    blended = isotonic(believed * measured + (1 - believed) * modelled, seconds)
    grid = _grid(max_nodes, [size.nodes for size in sizes])
    nodes = np.array(grid, dtype=np.float64)
    ratio = np.exp(np.interp(np.log2(nodes), np.log2(known), np.log(blended / modelled)))
    following = np.append(blended, np.inf)[np.searchsorted(known, nodes)]
    rates = np.minimum(model.rates(nodes) * ratio, following)
    rates[np.searchsorted(nodes, known)] = blended
    return Curve(tuple(zip(grid, np.maximum.accumulate(rates).tolist(), strict=True)))


def _grid(max_nodes: int, measured: Iterable[int]) -> list[int]:
    """Sizes between which a curve may be straight: all small ones, then eight for each doubling."""
    last = max(max_nodes, *measured)
    steps = math.floor(_SIZES_PER_DOUBLING * math.log2(max(last / _EVERY_SIZE_TO, 1.0)))
    large = (round(_EVERY_SIZE_TO * 2 ** (step / _SIZES_PER_DOUBLING)) for step in range(1, steps + 1))
    return sorted({*range(1, min(last, _EVERY_SIZE_TO) + 1), *large, *measured, last})
