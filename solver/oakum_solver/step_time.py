"""The time of a step on n nodes: a model that predicts sizes without measurements.

    t(n) = a / n + b + c log2(n),      a, b, c >= 0

a is computation, which the nodes share because the global batch is fixed; b is what each node does alone; c stands
for rounds of communication. It is the model of Ernest (Venkataraman et al., NSDI 2016) without its term in n,
which stands for a server that all nodes talk to. A rate is batch / t(n); counted per sample the batch cancels out,
so t is in seconds per sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SUPPORTS = np.array(((1, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)), dtype=np.float64)
"""The sets of coefficients (a, b, c) that may be above 0. c alone is missing: a step on one node would take 0
s."""
_RIDGE = 1e-12
"""Regularisation for coefficients that the points do not determine."""
_OUTLIER = 0.1
"""Huber's k: a relative residual above it counts linearly instead of squared."""
_ROUNDS = 20


@dataclass(frozen=True)
class StepTime:
    """A fitted model t(n) = a / n + b + c log2(n)."""

    compute: float
    """a: node-seconds per sample."""
    constant: float
    """b: seconds per sample."""
    communication: float
    """c: seconds per sample and doubling of the nodes."""

    def rates(self, nodes: Floats) -> Floats:
        """Samples/s at each number of nodes."""
        times = _columns(nodes) @ np.array((self.compute, self.constant, self.communication))
        rates: Floats = 1.0 / np.maximum(times, np.finfo(np.float64).tiny)
        return rates


def fit_step_time(nodes: Floats, rates: Floats, seconds: Floats) -> StepTime:
    """Fit the model to points (nodes, samples/s), each weighted by its seconds of measurement.

    Iteratively reweighted least squares of (t_model - t) / t_model with Huber's weights. Errors are relative to
    the model's time, so that a point far too fast moves the fit no more than one far too slow.
    """
    scale = float(np.median(rates))
    times = scale / rates
    columns = _columns(nodes)
    model = np.maximum(times, 1.0)  # not the times themselves: a wrong point far away would dominate the start
    coefficients = np.zeros(3)
    for _ in range(_ROUNDS):
        residuals = np.abs(model - times) / model
        weights = seconds * np.minimum(1.0, _OUTLIER / np.maximum(residuals, _OUTLIER)) / model**2
        before, coefficients = coefficients, _non_negative_fit(columns, times, weights / weights.sum())
        model = np.maximum(columns @ coefficients, 1e-9 * times)
        if np.allclose(before, coefficients, rtol=1e-3, atol=0.0):
            break
    a, b, c = (float(coefficient) / scale for coefficient in coefficients)
    return StepTime(a, b, c)


def _columns(nodes: Floats) -> Floats:
    return np.column_stack((1.0 / nodes, np.ones_like(nodes), np.log2(nodes)))


def _non_negative_fit(columns: Floats, times: Floats, weights: Floats) -> Floats:
    """Exact weighted least squares with coefficients >= 0: the best of the fits on each set of `_SUPPORTS`.

    The constrained optimum equals the unconstrained fit on those coefficients that are above 0 in it. With three
    coefficients there are few sets, and all are solved at once.
    """
    normal = columns.T @ (weights[:, None] * columns)
    right = columns.T @ (weights * times)
    normal += _RIDGE * np.trace(normal) * np.eye(3)
    systems = normal * _SUPPORTS[:, :, None] * _SUPPORTS[:, None, :]
    systems += np.eye(3) * (1.0 - _SUPPORTS)[:, :, None] * np.trace(normal)
    solutions = np.linalg.solve(systems, (right * _SUPPORTS)[:, :, None])[:, :, 0]
    errors = np.einsum("si,ij,sj->s", solutions, normal, solutions) - 2.0 * solutions @ right
    best: Floats = solutions[np.where((solutions >= 0.0).all(axis=1), errors, np.inf).argmin()]
    return best
