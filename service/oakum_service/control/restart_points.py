"""Changes of a trainer that take effect where it begins again: while it is paused and nothing of it runs."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict
from oakum_solver.wording import counted


def check_epochs(session: Session, trainer: Trainer, epochs: int) -> None:
    """Raise `Conflict` where the trainer cannot train this many epochs from now on: it is not paused, fragments of
    it are still leaving, or it has finished as many."""
    name = trainer.name
    if trainer.pause is None:
        raise Conflict(
            f"trainer {name!r} is not paused, and its ranks have to agree on the number of epochs: "
            f"`oakum pause {name}`, change it, `oakum unpause {name}`"
        )
    own = select(func.count()).where(Fragment.trainer_id == trainer.id, Fragment.is_live)
    if leaving := session.execute(own).scalar_one():
        raise Conflict(
            f"trainer {name!r} has {counted(leaving, 'fragment')} still leaving: change its epochs after that"
        )
    finished = 0 if trainer.progress is None else trainer.progress.epoch
    if epochs <= finished:
        raise Conflict(
            f"trainer {name!r} has finished {counted(finished, 'epoch')}: give at least {finished + 1}, or "
            f"`oakum cancel {name}`, which keeps its checkpoints"
        )


def set_totals(trainer: Trainer, epochs_before: int) -> None:
    """Set the steps and samples of all epochs in proportion to the trainer's epochs, until its ranks tell them."""
    progress, epochs = trainer.progress, trainer.spec.epochs
    if progress is None:
        return
    samples = progress.total_samples
    totals = {
        "total_steps": progress.total_steps * epochs // epochs_before,
        "total_samples": None if samples is None else samples * epochs // epochs_before,
    }
    trainer.progress = progress.model_copy(update=totals)
