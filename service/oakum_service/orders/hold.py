"""The hold, an admin's kill switch: while it lasts, every fragment is told to leave and none is launched."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db import event_log
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.installation import Hold
from oakum_service.db.models.trainers import Trainer
from oakum_service.standing import ActiveHold

_ROW = 1


def current(session: Session) -> Hold | None:
    """The hold's database row; None when there is no hold."""
    return session.get(Hold, _ROW)


def held(session: Session) -> ActiveHold | None:
    """The hold as a value that can be shown; None when there is no hold."""
    row = current(session)
    return None if row is None else ActiveHold(since=row.since, by=row.by_name, reason=row.reason)


def begin(session: Session, reason: str, by_name: str) -> Hold:
    """Begin a hold in the name of `by_name`, and return its row. A hold that exists already becomes that of
    `by_name`; it keeps its start time, and its reason unless a new one is given."""
    hold = current(session)
    if hold is None:
        hold = Hold(id=_ROW, reason=reason, by_name=by_name, since=clock.now())
        session.add(hold)
    else:
        hold.reason, hold.by_name = reason or hold.reason, by_name
    event_log.record(session, "service.held", by_name, f"holds the cluster: {hold.reason or 'no reason given'}")
    session.flush()
    return hold


def end(session: Session, by_name: str) -> bool:
    """End the hold; returns whether there was one."""
    if current(session) is None:
        return False
    session.execute(delete(Hold))
    event_log.record(session, "service.resumed", by_name, "ends the hold")
    return True


def release_all(session: Session) -> int:
    """Tell every live fragment to checkpoint and leave; returns how many had not been told before."""
    rows = session.execute(select(Fragment).where(Fragment.is_live, Fragment.released.is_(False))).scalars()
    fragments = list(rows)
    for fragment in fragments:
        fragment.released = True
    owners = select(Trainer).where(Trainer.id.in_({fragment.trainer_id for fragment in fragments}))
    for trainer in session.execute(owners).scalars():
        trainer.revision += 1
    return len(fragments)
