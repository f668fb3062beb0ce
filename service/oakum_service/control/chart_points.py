"""Points of a trainer's charts that no rank reports: it had no nodes, or the service was not listening."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.progress import ProgressSample
from oakum_service.db.models.trainers import Trainer
from oakum_service.states import LIVE_STATES


def record_idle(session: Session, trainer: Trainer, now: float) -> None:
    """Add a point of 0 samples/s: the trainer had no nodes until now, or has none from now on."""
    _add(session, trainer, now, num_nodes=0)


def record_gap(session: Session, now: float) -> None:
    """Add a point after a gap for each live trainer: nobody listened for a while, so what it did since its last
    point is unknown."""
    started = Trainer.started_at.is_not(None)
    for trainer in session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES), started)).scalars():
        num_nodes = trainer.progress.nodes if trainer.members and trainer.progress else len(trainer.members)
        _add(session, trainer, now, num_nodes=num_nodes, after_gap=True)


def _add(session: Session, trainer: Trainer, now: float, *, num_nodes: int, after_gap: bool = False) -> None:
    session.add(
        ProgressSample(
            trainer_id=trainer.id,
            at=now,
            step=trainer.reported_step,
            nodes=num_nodes,
            loss=None,
            samples_per_s=None if num_nodes else 0.0,
            after_gap=after_gap,
        )
    )
