"""How trainers end: finished, failed, or cancelled by their users."""

from __future__ import annotations

import time

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.control.accounts import Account
from oakum_service.db.models import Trainer
from oakum_service.states import LIVE_STATES, TrainerState


def end(session: Session, trainer: Trainer, state: TrainerState, message: str) -> None:
    """Nothing more will happen to the trainer: an empty generation sends its fragments away."""
    trainer.state, trainer.message, trainer.ended_at = state, message, time.time()
    if state == TrainerState.FAILED:
        trainer.over = trainer.generation
    trainer.generation += 1
    trainer.members, trainer.closer = [], None
    trainer.revision += 1
    if (account := Account.of(trainer.account)) is not None:
        trainer.account = account.turn_to(None, trainer.ended_at).document()
    journal.record(session, f"trainer.{state}", trainer.name, message)


def finish(session: Session, trainer: Trainer) -> None:
    """Its last step is done and durable."""
    progress = trainer.progress
    metrics = ", ".join(f"{name} {value:.4g}" for name, value in progress.get("metrics", {}).items())
    loss = "" if progress.get("loss") is None else f", loss {progress['loss']:.4g}"
    text = f"finished after {progress.get('step', 0)} steps{loss}{', ' + metrics if metrics else ''}"
    end(session, trainer, TrainerState.FINISHED, text)


def cancel_requested(session: Session) -> None:
    """End the trainers whose users do not want them any more."""
    rows = session.execute(
        select(Trainer).where(Trainer.cancel_requested.is_(True), Trainer.state.in_(LIVE_STATES))
    )
    for trainer in rows.scalars():
        end(session, trainer, TrainerState.CANCELLED, "cancelled by its user")
