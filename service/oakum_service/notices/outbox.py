"""The outbox: one database row for each notice, written in the transaction that makes the notice true.

A notice begins as a row without a recipient (`announce`). `address` makes one row for each recipient from it. A
row's id is computed from trainer, event and recipient, so work repeated after a crash yields the same id, by which
recipients recognise repeats.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from oakum_service.db.models.events import NoticeRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.notice import Notice
from oakum_worker.spec_options import NoticeEvent, NotifySpec

_NAMESPACE = uuid.UUID("6f616b75-6d00-4000-8000-6e6f74696365")
_KEPT_S = 7 * 24 * 3600.0
_MOST_MESSAGE = 2000


@dataclass(frozen=True)
class Delivery:
    """One notice that is to be delivered to one recipient."""

    id: str
    channel: str
    target: str
    document: Notice
    attempts: int
    """Number of failed attempts so far."""


def announce(
    session: Session, trainer: Trainer, event: NoticeEvent, message: str, now: float, which: str = ""
) -> None:
    """Record that this event happened to the trainer; recording it again changes nothing. `which` tells several
    events of one kind and trainer apart."""
    number = str(uuid.uuid5(_NAMESPACE, f"{trainer.id} {event} {which}"))
    if session.get(NoticeRecord, number) is not None:
        return
    session.add(
        NoticeRecord(
            id=number,
            event=event,
            trainer_id=trainer.id,
            document=Notice(
                event=event,
                trainer=trainer.name,
                trainer_id=trainer.id,
                user=trainer.user_name,
                message=message[:_MOST_MESSAGE],
                step=None if trainer.progress is None else trainer.progress.step,
                at=now,
            ),
            created_at=now,
            due_at=now,
        )
    )


def address(session: Session, everybody: Iterable[NotifySpec], users: Mapping[str, list[NotifySpec]]) -> None:
    """For each recorded event that has no recipients yet, make a row for each recipient: those in the trainer's
    spec, those of its user, and those notified of every trainer."""
    rows = session.execute(
        select(NoticeRecord, Trainer.spec)
        .outerjoin(Trainer, Trainer.id == NoticeRecord.trainer_id)
        .where(NoticeRecord.channel == "", NoticeRecord.due_at.is_not(None))
        .order_by(NoticeRecord.created_at)
    )
    for row, spec in rows:
        own = () if spec is None else spec.notify
        wanted = [*own, *users.get(row.document.user or "", ()), *everybody]
        for channel, target in dict.fromkeys(each.recipient for each in wanted if row.event in each.on):
            _add(session, row, channel, target)
        row.due_at = None  # the row stays for a week: `announce` recognises a repeated event by it


def _add(session: Session, row: NoticeRecord, channel: str, target: str) -> None:
    number = str(uuid.uuid5(uuid.UUID(row.id), f"{channel} {target}"))
    session.add(
        NoticeRecord(
            id=number,
            event=row.event,
            trainer_id=row.trainer_id,
            channel=channel,
            target=target,
            document=dataclasses.replace(row.document, id=number),
            created_at=row.created_at,
            due_at=row.due_at,
        )
    )


def something_due(session: Session, now: float) -> bool:
    """Whether any row has to be addressed or sent by now."""
    return session.execute(select(NoticeRecord.id).where(NoticeRecord.due_at <= now).limit(1)).first() is not None


def due(session: Session, now: float, most: int) -> list[Delivery]:
    """At most `most` deliveries that may be attempted now, the longest overdue first."""
    rows = session.scalars(
        select(NoticeRecord)
        .where(NoticeRecord.due_at <= now, NoticeRecord.channel != "")
        .order_by(NoticeRecord.due_at)
        .limit(most)
    )
    return [Delivery(row.id, row.channel, row.target, row.document, row.attempts) for row in rows]


def sent(session: Session, delivery: Delivery, now: float) -> None:
    """Record at the time `now` that the recipient has accepted the notice, so that it is not sent again."""
    row = session.get(NoticeRecord, delivery.id)
    if row is not None:
        row.sent_at, row.due_at, row.attempts, row.error = now, None, row.attempts + 1, ""


def failed(session: Session, delivery: Delivery, error: str, again_at: float | None) -> None:
    """Record a failed attempt. The next one is at `again_at`, in Unix seconds; None gives the notice up."""
    row = session.get(NoticeRecord, delivery.id)
    if row is not None:
        row.due_at, row.attempts, row.error = again_at, row.attempts + 1, error


def forget(session: Session, now: float) -> None:
    """Delete notices that were sent or given up and are older than a week."""
    session.execute(
        delete(NoticeRecord).where(NoticeRecord.due_at.is_(None), NoticeRecord.created_at < now - _KEPT_S)
    )
