"""A trainer's chart points from its recorded progress: no value where nothing is known, 0 samples/s without
nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oakum_service.api.schemas.series import SeriesPoint
from oakum_service.control.thinning import Point

_MOMENT_S = 1e-3
"""Seconds after which a value that is no longer known ends, so that no line is drawn from it to a later point."""


def points_of(rows: Sequence[Point], idle_until: float | None) -> list[SeriesPoint]:
    """Chart points for rows in order of time. `idle_until`: the present time if the trainer has no nodes, which
    adds a last point of 0 samples/s; else None."""
    points = list(_points(rows))
    if points and idle_until is not None and points[-1].nodes == 0:
        points.append(_idle(max(idle_until, points[-1].at), points[-1].step))
    return points


def _points(rows: Sequence[Point]) -> Iterator[SeriesPoint]:
    before: Point | None = None
    for row in rows:
        if row.after_gap and before is not None:
            yield SeriesPoint(
                at=before.at + _MOMENT_S, step=before.step, nodes=None, loss=None, samples_per_s=None
            )
        if row.nodes == 0:
            if before is not None and before.nodes and not row.after_gap:
                # The rate held until the nodes were gone, so the line has to fall there instead of sloping.
                yield _at(before, row.at - _MOMENT_S)
            yield _idle(row.at, row.step)
        elif not row.after_gap:
            yield _at(row, row.at)
        before = row


def _idle(at: float, step: int) -> SeriesPoint:
    return SeriesPoint(at=at, step=step, nodes=0, loss=None, samples_per_s=0.0)


def _at(row: Point, at: float) -> SeriesPoint:
    point = SeriesPoint(at=at, step=row.step, nodes=row.nodes, loss=row.loss, samples_per_s=row.samples_per_s)
    if row.reports == 1:
        return point
    losses = {name: getattr(row, name) for name in ("reports", "loss_mean", "loss_min", "loss_max")}
    return point.model_copy(update=losses)
