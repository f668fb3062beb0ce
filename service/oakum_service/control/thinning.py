"""Puts neighbouring chart points of a trainer together, so that a few of them show its whole run.

Bins of time are 2^k seconds wide, the narrowest that give few enough points, so the bins of an older thinning lie
within those of a later one. What a chart must show stays apart: of a trainer's own points those without nodes,
those after a gap, and points before and after a change of size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar

from sqlalchemy import select

from oakum_service.db.models.progress import ProgressSample


class Timed(Protocol):
    """What can be put together with its neighbours."""

    @property
    def at(self) -> float:
        """When it was, in Unix seconds."""

    def stays_apart(self, before: Self) -> bool:
        """Whether it may not become one with the one before it."""


_Timed = TypeVar("_Timed", bound=Timed)


class Point(NamedTuple):
    """What a `ProgressSample` tells."""

    at: float
    step: int
    nodes: int
    loss: float | None
    samples_per_s: float | None
    after_gap: bool = False
    reports: int = 1
    loss_mean: float | None = None
    loss_min: float | None = None
    loss_max: float | None = None

    def stays_apart(self, before: Point) -> bool:
        """Whether a chart has to show that something begins here."""
        return before.after_gap or self.after_gap or not self.nodes or before.nodes != self.nodes


POINTS = select(*(getattr(ProgressSample, name) for name in Point._fields))
"""Query for the fields of `Point`, in order."""


def groups(points: Sequence[_Timed], most: int) -> list[range]:
    """Ranges of indices of `points`, which are in order of time: the points of each range may become one. At most
    `most` ranges, unless the points that may not be merged with each other need more."""
    if len(points) <= most:
        return [range(number, number + 1) for number in range(len(points))]
    span_s = max(points[-1].at - points[0].at, 1e-3)
    width_s = 2.0 ** math.floor(math.log2(span_s / most))
    while True:
        merged = list(_cut(points, width_s))
        if len(merged) <= most or width_s > span_s:
            return merged
        width_s *= 2


def crowded(num_points: int, most: int) -> list[range]:
    """The indices of `num_points` points in at most `most` ranges of about equal length, whatever the points
    show."""
    size = -(-num_points // most)
    return [range(begin, min(begin + size, num_points)) for begin in range(0, num_points, size)]


def at_most(points: Sequence[Point], most: int) -> list[Point]:
    """The points, in order of time, neighbours put together where there are more than `most`."""
    merged = groups(points, most)
    if len(merged) > most:
        merged = crowded(len(points), most)
    return [together(points[group.start : group.stop]) for group in merged]


def together(points: Sequence[Point]) -> Point:
    """One point for these, at least one: the last of them, with the losses and the mean rate of all."""
    *_, last = points
    if len(points) == 1:
        return last
    rates = [point.samples_per_s for point in points if point.samples_per_s is not None]
    losses = [_with_losses(point) for point in points if point.loss is not None]
    means = [(mean, point.reports) for point in losses if (mean := point.loss_mean) is not None]
    return last._replace(
        loss=losses[-1].loss if losses else None,
        samples_per_s=sum(rates) / len(rates) if rates else None,
        reports=sum(point.reports for point in points),
        loss_mean=sum(mean * count for mean, count in means) / sum(n for _, n in means) if means else None,
        loss_min=min((point.loss_min for point in losses if point.loss_min is not None), default=None),
        loss_max=max((point.loss_max for point in losses if point.loss_max is not None), default=None),
    )


def _with_losses(point: Point) -> Point:
    if point.loss_mean is not None:
        return point
    return point._replace(loss_mean=point.loss, loss_min=point.loss, loss_max=point.loss)


def _cut(points: Sequence[_Timed], width_s: float) -> Iterator[range]:
    begin = 0
    for number in range(1, len(points)):
        before, point = points[number - 1], points[number]
        if point.stays_apart(before) or before.at // width_s != point.at // width_s:
            yield range(begin, number)
            begin = number
    yield range(begin, len(points))
