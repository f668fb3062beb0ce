"""How a trainer ends: finished, failed, diverged, or cancelled by its user."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db import event_log
from oakum_service.db.models.trainers import Trainer
from oakum_service.logs.fields import about
from oakum_service.notices.outbox import announce
from oakum_service.states import LIVE_STATES, TrainerState
from oakum_solver.wording import counted
from oakum_worker.spec_options import NoticeEvent
from oakum_worker.strategy_table import strategy_of

_NOTICES: dict[TrainerState, NoticeEvent] = {
    TrainerState.FINISHED: "finished",
    TrainerState.FAILED: "failed",
    TrainerState.DIVERGED: "diverged",
    TrainerState.CANCELLED: "cancelled",
}


def end(session: Session, trainer: Trainer, state: TrainerState, message: str, now: float) -> None:
    """End the trainer in the given state. Publishes a generation without members, which makes its fragments leave,
    and records the event and notices."""
    trainer.state, trainer.message, trainer.ended_at = state, message, now
    if state in (TrainerState.FAILED, TrainerState.DIVERGED):
        trainer.ended_through = trainer.generation
    trainer.generation += 1
    trainer.members, trainer.saver, trainer.has_state = (), None, False
    trainer.revision += 1
    if trainer.account is not None:
        trainer.account = trainer.account.turn_to(None, now)
    with about(trainer=trainer.id):
        event_log.record(session, f"trainer.{state}", trainer.name, message)
    announce(session, trainer, _NOTICES[state], message, now)


def finish(session: Session, trainer: Trainer, now: float) -> None:
    """End the trainer as finished: its last step is done and in a durable checkpoint."""
    progress = trainer.progress
    newest_metrics = {} if progress is None else progress.metrics
    metrics = "".join(f", {name} {value:.4g}" for name, value in newest_metrics.items())
    loss = "" if progress is None or progress.loss is None else f", loss {progress.loss:.4g}"
    early = f"; it ended early: {progress.ended_early}" if progress is not None and progress.ended_early else ""
    text = f"finished after {counted(trainer.reported_step, 'step')}{loss}{metrics}{early}"
    end(session, trainer, TrainerState.FINISHED, text, now)


def diverge(session: Session, trainer: Trainer, message: str, now: float) -> None:
    """End the trainer because its loss, gradients or weights are not finite. No checkpoint of that state was
    written."""
    end(session, trainer, TrainerState.DIVERGED, message + _kept_checkpoint(trainer), now)


def keep_checkpoint(trainer: Trainer, step: int, now: float) -> None:
    """Record the trainer's newest durable checkpoint. That of a diverged trainer is added to its message if the
    message names none: rank 0 may finish writing it after another rank has reported the divergence."""
    is_first = trainer.checkpoint_step is None
    trainer.checkpoint_step, trainer.checkpoint_at = step, now
    if not TrainerState(trainer.state).ended:
        trainer.message = ""
    elif trainer.state == TrainerState.DIVERGED and is_first:
        trainer.message += _kept_checkpoint(trainer)


def _kept_checkpoint(trainer: Trainer) -> str:
    """The end of a diverged trainer's message, which tells of its checkpoint; empty where there is none."""
    if trainer.checkpoint_step is None:
        return ""
    kept = ". Its newest checkpoint was written before that and is kept"
    if not strategy_of(trainer.spec).splits_state:
        kept += f": `oakum submit SPEC --from {trainer.name}` begins there"
    return kept


def cancel_requested(session: Session, now: float) -> None:
    """End the trainers whose users have cancelled them."""
    rows = session.execute(
        select(Trainer).where(Trainer.cancel_requested.is_(True), Trainer.state.in_(LIVE_STATES))
    )
    for trainer in rows.scalars():
        end(session, trainer, TrainerState.CANCELLED, "cancelled by its user", now)
