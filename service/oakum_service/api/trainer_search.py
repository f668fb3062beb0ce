"""Which trainers a list has: by state, user and tag, page by page."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from sqlalchemy import Select, Text, cast, func, select
from sqlalchemy.orm import Session

from oakum_service.api.paging import older_than, place
from oakum_service.db.models.trainers import Trainer, TrainerTag, live_of
from oakum_service.states import LIVE_STATES, TrainerState

MOST_ENDED = 500
"""Documents of trainers that have ended in one answer: each takes about half a millisecond."""
_MOST_CHARACTERS = 4_000_000
"""Of these trainers' specs and messages in one answer."""


class Asked(NamedTuple):
    """Which trainers are asked for."""

    live: bool
    """Whether only those that have not ended."""
    state: TrainerState | None
    user: str | None
    tag: str | None
    reader: str | None
    """The user whose trainers alone may be found; None: everybody's."""
    limit: int
    """Most of those that have ended."""
    before: str | None
    """Where the page of those that have ended begins."""

    @property
    def users(self) -> set[str]:
        """Whose the trainers have to be, each of them: nobody's, if these are two."""
        return {user for user in (self.user, self.reader) if user is not None}


def ended_trainers(session: Session, asked: Asked) -> tuple[list[Trainer], bool]:
    """The newest of the trainers asked for that have ended, and whether there is another one."""
    return ([], False) if asked.live else _page(session, _ended(asked), asked.limit)


def live_trainers(session: Session, asked: Asked) -> list[Trainer]:
    """The trainers asked for that have not ended, which are on the first page."""
    if asked.before is not None:
        return []
    query = select(Trainer).where(Trainer.state.in_(LIVE_STATES))
    if asked.state is not None:
        query = query.where(Trainer.state == asked.state)
    for user in asked.users:
        query = query.where(*live_of(user))
    # Not by the table of tags, by which a database would go through all that have ended.
    return [row for row in session.scalars(query) if asked.tag is None or asked.tag in row.spec.tags]


def _ended(asked: Asked) -> Select[Trainer]:
    """The trainers asked for that have ended, the newest first."""
    query = select(Trainer)
    at, id_ = Trainer.submitted_at, Trainer.id
    if asked.tag is not None:
        query = query.join(TrainerTag, TrainerTag.trainer_id == Trainer.id).where(TrainerTag.tag == asked.tag)
        at, id_ = TrainerTag.submitted_at, TrainerTag.trainer_id
    # Not `in` the other states, by which SQLite would read all that have ended, to sort them.
    query = query.where(Trainer.state.not_in(LIVE_STATES)).order_by(at.desc(), id_.desc())
    if asked.state is not None:
        query = query.where(Trainer.state == asked.state)
    for user in asked.users:
        query = query.where(Trainer.user_name == user)
    return query if asked.before is None else query.where(older_than(at, id_, place(asked.before)))


def _page(session: Session, query: Select[Trainer], limit: int) -> tuple[list[Trainer], bool]:
    """The first `limit` of the query's trainers, or those that have `_MOST_CHARACTERS` together, but at least one;
    and whether there is another one."""
    long_columns = (Trainer.spec, Trainer.message, Trainer.progress, Trainer.crash)
    lengths = [func.coalesce(func.length(cast(column, Text)), 0) for column in long_columns]
    sized = session.execute(query.with_only_columns(Trainer.id, *lengths).limit(limit + 1)).all()
    sums = itertools.accumulate(sum(row[1:]) for row in sized[:limit])
    ids = [row.id for row, size in zip(sized, sums, strict=False) if size <= _MOST_CHARACTERS or row is sized[0]]
    by_id = {row.id: row for row in session.scalars(select(Trainer).where(Trainer.id.in_(ids)))}
    return [by_id[id_] for id_ in ids], len(sized) > len(ids)
