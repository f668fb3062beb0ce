"""What came of trainers' steps: chart points, evaluations and measured rates."""

from __future__ import annotations

from sqlalchemy import ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from oakum_service.db.json_columns import JsonOf
from oakum_service.db.models.base import Base, RowId
from oakum_solver.learnt_curves import RateWindow


class ProgressSample(Base):
    """One point of a trainer's charts: step, nodes, loss and rate at one time. Old neighbouring points are
    merged into the last of them."""

    __tablename__ = "progress"

    id: Mapped[int] = mapped_column(RowId, primary_key=True, autoincrement=True)
    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"))
    at: Mapped[float]
    step: Mapped[int]
    nodes: Mapped[int]
    loss: Mapped[float | None]
    samples_per_s: Mapped[float | None]
    after_gap: Mapped[bool] = mapped_column(default=False)
    """Whether the service was not listening between the previous sample and this one."""
    reports: Mapped[int] = mapped_column(default=1)
    """Number of points that this one stands for."""
    loss_mean: Mapped[float | None] = mapped_column(default=None)
    """Of these points, as are least and greatest; null where it stands for itself alone."""
    loss_min: Mapped[float | None] = mapped_column(default=None)
    loss_max: Mapped[float | None] = mapped_column(default=None)

    __table_args__ = (Index("ix_progress_trainer", "trainer_id", "id"),)


class EvaluationRecord(Base):
    """What one evaluation of a trainer gave; one that is repeated after a loss replaces the first one."""

    __tablename__ = "evaluations"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    """Number of steps that were finished."""
    at: Mapped[float]
    """When the step was finished, by the steps of the two reports around it."""
    metrics: Mapped[dict[str, float]] = mapped_column(JsonOf(dict[str, float]))


class MeasuredRate(Base):
    """How fast a trainer trains at one number of nodes, in undisturbed training."""

    __tablename__ = "measured_rates"

    trainer_id: Mapped[str] = mapped_column(ForeignKey("trainers.id"), primary_key=True)
    nodes: Mapped[int] = mapped_column(primary_key=True)
    seconds: Mapped[float]
    """Total seconds over which the rate was measured."""
    samples: Mapped[float]
    """Samples trained in these seconds."""
    explored_s: Mapped[float]
    """Part of `seconds` in which the planner assumed a higher rate than the curve's, to have this size
    measured."""
    recent: Mapped[tuple[RateWindow, ...]] = mapped_column(JsonOf(tuple[RateWindow, ...]))
    """The newest measurement windows, newest last."""
