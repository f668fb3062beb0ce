"""Lets a trainer that has failed or was cancelled go on from its newest durable checkpoint."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import Conflict
from oakum_service.logs.fields import about
from oakum_service.states import TrainerState

_WHY_NEVER = {
    TrainerState.FINISHED: "has finished: submit it with more epochs and `--from {name}`",
    TrainerState.DIVERGED: "has diverged and would again with the same settings and samples: change those and "
    "submit it with `--from {name}`",
}
"""The ends after which a trainer never goes on, and what to do instead."""


def retry(session: Session, trainer: Trainer, by: str, now: float, gone: Path | None = None) -> None:
    """Let an ended trainer wait for nodes again; crashes until now no longer count. It goes on from its newest
    durable checkpoint, or from its beginning if it has written none. The caller has checked that its name is free,
    and gives the folder of its checkpoints as `gone` if that folder is missing.

    Raises `Conflict` for a trainer that is live, has finished or has diverged, while fragments of it are leaving,
    and if its checkpoint is gone.
    """
    _refuse_others(session, trainer, gone)
    trainer.state, trainer.message, trainer.ended_at = TrainerState.WAITING, "", None
    trainer.cancel_requested, trainer.pause = False, None
    trainer.crashes, trainer.crashed_step, trainer.crash = 0, -1, None
    trainer.setback = None
    trainer.ended_through = trainer.generation
    trainer.waiting_since, trainer.guard_waited_s, trainer.guard_served_s = now, 0.0, 0.0
    if trainer.account is not None:
        trainer.account = trainer.account.reopened()
    step = trainer.checkpoint_step
    where = "from its beginning" if step is None else f"from its checkpoint of step {step:,}"
    with about(trainer=trainer.id):
        event_log.record(session, "trainer.retried", trainer.name, f"{by} lets it go on {where}")


def may_retry(state: TrainerState) -> bool:
    """Whether `retry` lets a trainer in this state continue: it has ended, and neither finished nor diverged.
    `retry` may still refuse it for another reason, such as a missing checkpoint."""
    return state.ended and state not in _WHY_NEVER


def way_on(trainer: Trainer) -> str:
    """A clause that tells the user which command continues a trainer that has ended."""
    if may_retry(TrainerState(trainer.state)):
        return f"`oakum retry {trainer.name}` lets it go on, and then it can be"
    return f"`oakum submit SPEC --from {trainer.name}` begins from its state"


def _refuse_others(session: Session, trainer: Trainer, gone: Path | None) -> None:
    state = TrainerState(trainer.state)
    if not state.ended:
        raise Conflict(
            f"trainer {trainer.name!r} is {state}: only one that has failed or was cancelled is retried"
        )
    if not may_retry(state):
        raise Conflict(f"trainer {trainer.name!r} {_WHY_NEVER[state].format(name=trainer.name)}")
    leaving = session.scalars(
        select(Fragment.node).where(Fragment.trainer_id == trainer.id, Fragment.is_live)
    ).all()
    if leaving:
        raise Conflict(
            f"fragments of trainer {trainer.name!r} are still leaving {', '.join(leaving[:3])}"
            f"{' and others' if len(leaving) > 3 else ''}: retry it in a moment"
        )
    if trainer.checkpoint_step is not None and gone is not None:
        raise Conflict(
            f"the checkpoints of trainer {trainer.name!r} are gone from {gone}: submit it again, to begin anew"
        )
