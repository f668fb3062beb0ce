"""Documents of a trainer's progress over time: chart points and evaluations."""

from __future__ import annotations

from pydantic import BaseModel


class SeriesPoint(BaseModel):
    """One point of a trainer's charts: step, nodes, loss and rate at one time. A point may stand for several
    neighbours: it then tells of the last one, and of the losses of all."""

    at: float
    step: int
    nodes: int | None
    """Number of nodes; null if it is unknown because no service was listening."""
    loss: float | None
    """Null also while the trainer has no nodes, since nothing is computed."""
    samples_per_s: float | None
    """The mean of all points that it stands for."""
    reports: int = 1
    """Number of points that it stands for; the losses below are there where these are several."""
    loss_mean: float | None = None
    loss_min: float | None = None
    loss_max: float | None = None


class Series(BaseModel):
    """A trainer's chart points, in order of time."""

    points: list[SeriesPoint]


class EvaluationView(BaseModel):
    """What the task's `evaluate` returned after one step."""

    step: int
    """Number of steps that were finished."""
    at: float
    """When the service heard of it, in Unix seconds."""
    metrics: dict[str, float]


class EvaluationList(BaseModel):
    """A trainer's evaluations, in order of steps."""

    evaluations: list[EvaluationView]
