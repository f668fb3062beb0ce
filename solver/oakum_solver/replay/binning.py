"""Reduces step functions of time to as many points as a chart can show.

A step function has the value `values[i]` from `times[i]` to `times[i + 1]`. The mean over each bin keeps the area
under the function, so that the chart shows the log's node-hours; the minimum and maximum of each bin keep extremes
that are shorter than a bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Binned:
    """Mean, minimum and maximum of a step function in each bin; NaN in bins before the first step."""

    edges: Floats
    """Bin i is from edges[i] to edges[i + 1]."""
    mean: Floats
    low: Floats
    high: Floats


def bin_edges(times: Floats, end: float, most: int) -> Floats:
    """Borders of the bins: the step function's own times if they are few, else of `most` equal bins up to
    `end`."""
    own = np.unique(np.concatenate([times[(times >= 0) & (times < end)], [end]]))
    return own if len(own) <= most + 1 else np.linspace(float(own[0]), end, most + 1)


def reduce_steps(times: Floats, values: Floats | NDArray[np.int64], edges: Floats) -> Binned:
    """Reduce a step function to the bins between `edges`.

    `times` ascend; of equal times the last value counts. Takes about as long as one sort.
    """
    last = np.append(times[1:] > times[:-1], True) if len(times) else np.empty(0, dtype=bool)
    times, levels = times[last], values[last].astype(np.float64)
    if not len(times):
        nothing = np.full(len(edges) - 1, np.nan)
        return Binned(edges, nothing, nothing, nothing)
    starts = edges[:-1]
    at_start = levels[np.maximum(np.searchsorted(times, starts, side="right") - 1, 0)]
    merged, position = _with_bin_starts(times, levels, starts, at_start, end=float(edges[-1]))
    low, high = np.minimum.reduceat(merged, position), np.maximum.reduceat(merged, position)
    before = edges[1:] <= times[0]
    mean = np.clip(_means(times, levels, edges), low, high)
    return Binned(edges, *(np.where(before, np.nan, part) for part in (mean, low, high)))


def _with_bin_starts(
    times: Floats, values: Floats, starts: Floats, at_start: Floats, end: float
) -> tuple[Floats, NDArray[np.intp]]:
    """(all values of the step function, sorted by bin; index of each bin's first value). Every bin begins with
    its element of `at_start`, the function's value at the bin's start; values at the times within the bin
    follow."""
    inside = (times > starts[0]) & (times < end) & ~np.isin(times, starts)
    all_times = np.concatenate([starts, times[inside]])
    order = np.argsort(all_times, kind="stable")
    position = np.searchsorted(all_times[order], starts, side="left")
    return np.concatenate([at_start, values[inside]])[order], position


def _means(times: Floats, values: Floats, edges: Floats) -> Floats:
    """Mean value in each bin; the time before the first step does not count."""
    until = np.append(times[1:], max(float(edges[-1]), float(times[-1])))
    area = np.concatenate([[0.0], np.cumsum(values * (until - times))])
    covered = np.clip(edges, times[0], None)
    areas = np.diff(np.interp(covered, np.append(times, until[-1]), area))
    widths = np.diff(covered)
    means: Floats = np.divide(areas, widths, out=np.zeros(len(areas)), where=widths > 0)
    return means
