"""Scalability curves: given by a user, assumed where the user gave none, or learnt from measured rates.

A learnt curve combines two sources. At a measured size the measurement counts, with a weight that grows with its
seconds; elsewhere the step-time model (`step_time`) counts, which is fitted to all measurements and, weakly, to
the shape of the user's curve:

    rate(n) = model(n) * r(n),    r = blended / model at measured sizes, log-linear in log2 n between, level beyond
    blended(n) = isotonic regression over the measured n of  w m(n) + (1 - w) model(n),    w = s / (s + 10)

with m(n) the median of the rates measured at n, and s the seconds of these measurements. The uncertainty is

    std(n) / rate(n) = sqrt( scatter^2 (1 - w) + (0.1 d)^2 )

where d is the distance of n from the nearest measured size in doublings, w the weight of that size, and scatter
the relative spread of the measurements around the curve (1.4826 times their median absolute deviation, at least 2
%).
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
"""Seconds of measurement that a user's curve counts for, shared among its points."""
_GUESS_S = 1.0
"""Seconds of measurement that an assumed linear curve counts for."""
_HALF_BELIEVED_S = 10.0
"""Seconds of measurement at which a measured rate counts as much as the model's rate."""
_SPREAD_PER_DOUBLING = 0.1
_LEAST_SCATTER = 0.02
_UNMEASURED = 0.5
"""Relative standard deviation of a curve without any measurement."""
_EVERY_SIZE_TO = 32
_SIZES_PER_DOUBLING = 8


def linear_curve(max_nodes: int, rate_per_node: float = 1.0) -> Curve:
    """The curve assumed for a trainer without one: each node up to `max_nodes` adds `rate_per_node` samples/s.

    The default rate is only a unit: it treats all trainers without curves alike. Comparing it with a measured
    curve makes sense under `NamedObjective.SPEEDUP` alone.
    """
    return Curve(((max_nodes, rate_per_node * max_nodes),))


def curve_from_points(points: Iterable[tuple[int, float]], max_nodes: int) -> Curve:
    """The curve through the points (nodes, samples/s), given in any order; `linear_curve` where there are none.

    Raises `ProblemError` where the points contradict each other.
    """
    ordered = tuple(sorted((nodes, float(rate)) for nodes, rate in points))
    return Curve(ordered) if ordered else linear_curve(max_nodes)


def newcomer_curve(min_nodes: int, max_nodes: int, rate_per_node: float) -> Curve:
    """The curve assumed for a trainer of unknown speed that competes with trainers of known speed.

    At its minimum it makes `rate_per_node` samples/s a node, so that it gets that many nodes and is measured;
    above, each node adds only 1 sample/s, so that it gets nodes that no other trainer wants.
    """
    rate = rate_per_node * min_nodes
    if max_nodes == min_nodes:
        return Curve(((min_nodes, rate),))
    return Curve(((min_nodes, rate), (max_nodes, rate + max_nodes - min_nodes)))


@dataclass(frozen=True)
class Sample:
    """A measured rate: the mean over a period of training without a rescale.

    Raises `ProblemError` unless all three are finite and above 0.
    """

    nodes: int
    rate: float
    """Samples/s."""
    seconds: float
    """Length of the measurement."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or not 0 < self.rate < math.inf or not 0 < self.seconds < math.inf:
            raise ProblemError(
                f"measured {self.rate} samples/s on {self.nodes} nodes over {self.seconds} s: expected at least "
                "one node, and a rate and seconds that are finite and above 0"
            )


@dataclass(frozen=True)
class FittedCurve:
    """A learnt curve with its uncertainty at each size."""

    curve: Curve
    seconds: Mapping[int, float] = field(default_factory=dict)
    """Size -> seconds of measurement at that size."""
    scatter: float = _UNMEASURED
    """Relative standard deviation of the measurements around the curve."""

    @property
    def measured(self) -> frozenset[int]:
        """The sizes (numbers of nodes) that were measured."""
        return frozenset(self.seconds)

    def std(self, nodes: int) -> float:
        """Standard deviation of the rate at `nodes` nodes, in samples/s, by the formula in the module's
        docstring."""
        if not self.seconds or nodes < 1:
            return self.scatter * self.curve.rate(nodes)
        doublings, nearest = min((abs(math.log2(nodes / size)), size) for size in self.seconds)
        doubt = 1.0 - _belief(self.seconds[nearest])
        return self.curve.rate(nodes) * math.hypot(
            self.scatter * math.sqrt(doubt), _SPREAD_PER_DOUBLING * doublings
        )

    def low(self, nodes: int) -> float:
        """Lower end of the rate's plausible range: two standard deviations below the curve, in samples/s."""
        return max(0.0, self.curve.rate(nodes) - 2.0 * self.std(nodes))

    def high(self, nodes: int) -> float:
        """Upper end of the rate's plausible range: two standard deviations above the curve, in samples/s."""
        return self.curve.rate(nodes) + 2.0 * self.std(nodes)


def fit_curve(samples: Sequence[Sample], prior: Curve | None, max_nodes: int) -> FittedCurve:
    """Fit a curve up to `max_nodes` to measured rates.

    `prior` is the user's curve. Without measurements it is the result. With measurements it counts like 30 s of
    measurement for the curve's shape, whatever its unit. Without a prior a linear curve counts like 1 s.
    The samples of one size count as their median, weighted by seconds, so that a sample disturbed by other work on
    the node changes little.
    """
    sizes = _by_size(samples)
    has_prior = prior is not None and prior.points[-1][1] > 0  # a curve that is 0 everywhere has no shape
    shape = prior if prior is not None and has_prior else linear_curve(max_nodes)
    if not sizes:
        return FittedCurve(shape)
    believed = _prior_samples(sizes, shape, max_nodes, PRIOR_S if has_prior else _GUESS_S)
    model = _fit_model(sizes + believed)
    curve = _blend(sizes, model, max_nodes)
    misses = [Sample(s.nodes, 1.0 + abs(s.rate / curve.rate(s.nodes) - 1.0), s.seconds) for s in samples]
    scatter = max(_LEAST_SCATTER, 1.4826 * (_median_rate(misses) - 1.0))
    return FittedCurve(curve, {size.nodes: size.seconds for size in sizes}, scatter)


def isotonic(values: Floats, weights: Floats) -> Floats:
    """The non-falling sequence nearest to `values` in weighted least squares, by pooling adjacent violators.

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
    """The median of the samples' rates, each weighted by its seconds."""
    ordered = sorted(samples, key=lambda sample: sample.rate)
    reached = itertools.accumulate(sample.seconds for sample in ordered)
    half = sum(sample.seconds for sample in ordered) / 2
    return next((s.rate for s, seconds in zip(ordered, reached, strict=True) if seconds >= half), ordered[-1].rate)


def _prior_samples(sizes: list[Sample], prior: Curve, max_nodes: int, seconds: float) -> list[Sample]:
    """The prior curve's points as samples of `seconds` in all, for the fit. Their rates are scaled to the
    measurements, by the median ratio at the measured sizes."""
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
    """The learnt curve: rate(n) of the module's docstring at the sizes of `_grid`, made non-falling."""
    measured_nodes = np.array([size.nodes for size in sizes], dtype=np.float64)
    measured = np.array([size.rate for size in sizes])
    seconds = np.array([size.seconds for size in sizes])
    believed = np.array([_belief(size.seconds) for size in sizes])
    modelled = model.rates(measured_nodes)
    blended = isotonic(believed * measured + (1 - believed) * modelled, seconds)
    grid = _grid(max_nodes, [size.nodes for size in sizes])
    nodes = np.array(grid, dtype=np.float64)
    ratio = np.exp(np.interp(np.log2(nodes), np.log2(measured_nodes), np.log(blended / modelled)))
    following = np.append(blended, np.inf)[np.searchsorted(measured_nodes, nodes)]
    rates = np.minimum(model.rates(nodes) * ratio, following)
    rates[np.searchsorted(nodes, measured_nodes)] = blended
    return Curve(tuple(zip(grid, np.maximum.accumulate(rates).tolist(), strict=True)))


def _grid(max_nodes: int, measured: Iterable[int]) -> list[int]:
    """Sizes at which a curve gets points: all up to 32, then eight for each doubling, and all measured ones."""
    last = max(max_nodes, *measured)
    steps = math.floor(_SIZES_PER_DOUBLING * math.log2(max(last / _EVERY_SIZE_TO, 1.0)))
    large = (round(_EVERY_SIZE_TO * 2 ** (step / _SIZES_PER_DOUBLING)) for step in range(1, steps + 1))
    return sorted({*range(1, min(last, _EVERY_SIZE_TO) + 1), *large, *measured, last})
