"""Tags and notes of trainers: words for people, which change nothing about training."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from oakum_service.db.models.trainers import Trainer, TrainerTag


def make_findable(session: Session, trainer: Trainer) -> None:
    """Let the trainer, which is in the database or about to be, be found by the tags of its spec, and by no
    others."""
    session.flush()
    session.execute(delete(TrainerTag).where(TrainerTag.trainer_id == trainer.id))
    session.add_all(
        TrainerTag(trainer_id=trainer.id, tag=tag, submitted_at=trainer.submitted_at) for tag in trainer.spec.tags
    )
