"""The hold: while there is one, every fragment is sent away and none is launched."""

from __future__ import annotations

import time

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from oakum_service.control import journal
from oakum_service.db.models import Fragment, FragmentState, Hold, Trainer

_ROW = 1


def current(session: Session) -> Hold | None:
    """The hold, if there is one."""
    return session.get(Hold, _ROW)


def begin(session: Session, reason: str, by_name: str) -> Hold:
    """Hold; one that holds already keeps its time and gets the new reason."""
    hold = current(session)
    if hold is None:
        hold = Hold(id=_ROW, reason=reason, by_name=by_name, since=time.time())
        session.add(hold)
        journal.record(session, "service.held", by_name, f"held by {by_name}: {reason or 'no reason given'}")
    else:
        hold.reason, hold.by_name = reason, by_name
    session.flush()
    return hold


def end(session: Session, by_name: str) -> bool:
    """End the hold; returns whether there was one."""
    if current(session) is None:
        return False
    session.execute(delete(Hold))
    journal.record(session, "service.resumed", by_name, f"resumed by {by_name}")
    return True


def release_all(session: Session) -> int:
    """Have every fragment checkpoint and leave; returns how many had not been told yet."""
    rows = session.execute(
        select(Fragment).where(Fragment.state != FragmentState.ENDED, Fragment.released.is_(False))
    ).scalars()
    told = list(rows)
    for fragment in told:
        fragment.released = True
    owners = select(Trainer).where(Trainer.id.in_({fragment.trainer_id for fragment in told}))
    for trainer in session.execute(owners).scalars():
        trainer.revision += 1
    return len(told)
