"""The pause of a trainer: while it lasts, the trainer's fragments are told to leave and it is granted no node."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.pause import Pause
from oakum_service.logs.fields import about
from oakum_service.states import LIVE_STATES


def begin(session: Session, trainer: Trainer, reason: str, by: str) -> None:
    """Pause the trainer. A pause that is in force keeps its start time, and its reason unless one is given."""
    before = trainer.pause
    since = clock.now() if before is None else before.since
    trainer.pause = Pause(since, by, reason or ("" if before is None else before.reason))
    with about(trainer=trainer.id):
        event_log.record(session, "trainer.paused", trainer.name, f"{by} pauses it: {reason or 'no reason given'}")


def end(session: Session, trainer: Trainer, by: str) -> bool:
    """End the trainer's pause; returns whether there was one. The trainer's waiting time begins anew."""
    if trainer.pause is None:
        return False
    trainer.pause = None
    if trainer.waiting_since is not None:
        trainer.waiting_since = clock.now()
    with about(trainer=trainer.id):
        event_log.record(session, "trainer.unpaused", trainer.name, f"{by} ends its pause")
    return True


def paused(session: Session) -> list[Trainer]:
    """The live trainers that are paused."""
    live = session.execute(select(Trainer).where(Trainer.state.in_(LIVE_STATES))).scalars()
    return [trainer for trainer in live if trainer.pause is not None]


def release_paused(session: Session) -> None:
    """Mark the live fragments of paused trainers as released, which tells them to checkpoint and leave.
    Fragments released before stay as they are."""
    for trainer in paused(session):
        mine = select(Fragment).where(
            Fragment.trainer_id == trainer.id, Fragment.is_live, Fragment.released.is_(False)
        )
        fragments = session.execute(mine).scalars().all()
        for fragment in fragments:
            fragment.released = True
        trainer.revision += bool(fragments)
