"""What the database remembers of launches that came to nothing; `control.setbacks` decides what follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from oakum_service import instruments
from oakum_service.control import setbacks
from oakum_service.control.setbacks import Surroundings
from oakum_service.db import event_log
from oakum_service.db.after_commit import after_commit
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.setback import SetbackKind
from oakum_service.log_fields import about
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import LIVE_STATES


def may_launch(session: Session, trainer: Trainer, nodes: Collection[str], snapshot: Snapshot, now: float) -> bool:
    """Whether the trainer may be launched on these nodes now, after what came of its last launches."""
    if trainer.setback is None:
        return True
    return setbacks.may_launch(trainer.setback, nodes, _surroundings(session, trainer, snapshot), now)


def left_out(session: Session, snapshot: Snapshot, now: float) -> set[str]:
    """The nodes on which nothing new is launched for now, since launches there came to nothing."""
    live = session.scalars(select(Trainer).where(Trainer.state.in_(LIVE_STATES)))
    found = (
        setbacks.suspected_node(trainer.setback, _surroundings(session, trainer, snapshot), now)
        for trainer in live
        if trainer.setback is not None
    )
    return {node for node in found if node is not None}


def note_refusal(
    session: Session, trainer: Trainer, nodes: Sequence[str], snapshot: Snapshot, what: str, now: float
) -> None:
    """Record that a submission to these nodes was refused with the words `what`, and when the next is due."""
    seen = _surroundings(session, trainer, snapshot)
    setback = setbacks.after(trainer.setback, SetbackKind.REFUSED, what, nodes, seen, now)
    trainer.setback = setback
    after_commit(session, instruments.REFUSALS.inc)
    with about(trainer=trainer.id):
        event_log.record(
            session,
            "launch.refused",
            trainer.name,
            f"{', '.join(nodes)}: {setback.what}; the next submission is due in {setback.next_at - now:.0f} s",
            nodes=list(nodes),
            times=setback.times,
        )


def note_acceptance(trainer: Trainer, nodes: Collection[str]) -> None:
    """Record that the scheduler has taken the submission of fragments for these nodes."""
    if trainer.setback is not None:
        trainer.setback = setbacks.after_acceptance(trainer.setback, nodes)


def _surroundings(session: Session, trainer: Trainer, snapshot: Snapshot) -> Surroundings:
    taken = select(func.count()).select_from(Fragment).where(Fragment.state == FragmentState.LIVE)
    return Surroundings(trainer.spec, snapshot, session.scalar(taken) or 0)
