"""Quotas: how many trainers, nodes, node-hours per week and GiB of checkpoints a user may have, and how large a
weight the user may give."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.config import Settings
from oakum_service.db.engine import Sessions
from oakum_service.db.models.callers import QuotaRecord
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer, live_of
from oakum_service.db.models.usage import WeekUse
from oakum_service.fragments.trainer_files import Checkpoints

_WEEK_S = 7 * 24 * 3600.0
_FIRST_MONDAY_S = 4 * 24 * 3600.0
"""1970-01-05, in Unix seconds."""
_REMEMBERED_S = 60.0
_GIB = 2**30


@dataclass(frozen=True)
class Quota:
    """What one user may have; None means no limit."""

    trainers: int | None
    """Live trainers."""
    nodes: int | None
    """Nodes of all trainers together."""
    node_hours: float | None
    """Node-hours in a calendar week, which begins on Monday, 00:00 UTC."""
    storage_gib: float | None
    weight: float
    """Largest weight of a trainer."""


FIELDS = tuple(field.name for field in dataclasses.fields(Quota))


def usual_quota(settings: Settings) -> Quota:
    """The quota of users for whom none is set."""
    usual = settings.quota
    return Quota(usual.trainers, settings.user_cap, usual.node_hours, usual.storage_gib, usual.weight)


def quota_of(session: Session, settings: Settings, user: str) -> Quota:
    """The user's quota: what an administrator has set for the user, and the settings' for the rest."""
    return _with_row(usual_quota(settings), session.get(QuotaRecord, user))


def own_quotas(session: Session, settings: Settings) -> dict[str, Quota]:
    """The quotas of the users for whom an administrator has set one."""
    usual = usual_quota(settings)
    return {row.user_name: _with_row(usual, row) for row in session.scalars(select(QuotaRecord))}


def _with_row(usual: Quota, row: QuotaRecord | None) -> Quota:
    if row is None:
        return usual
    given = {name: value for name in FIELDS if (value := getattr(row, name)) is not None}
    return dataclasses.replace(usual, **given)


def set_quota(session: Session, user: str, limits: Mapping[str, float | None], by: str) -> None:
    """Give the user these limits, by the names of `Quota`'s fields, in place of all that were set for the user; a
    missing or empty one is as the settings say."""
    session.merge(QuotaRecord(user_name=user, by_name=by, since=clock.now(), **{n: limits.get(n) for n in FIELDS}))


def week_begin(now: float) -> float:
    """When the calendar week of `now` began, in Unix seconds: Monday, 00:00 UTC."""
    return now - (now - _FIRST_MONDAY_S) % _WEEK_S


def add_to_week(session: Session, user: str | None, launched_at: float, ended_at: float, slots: int = 1) -> None:
    """Add the node-time of a fragment of the user that has ended, with so many slots, to the week in which it
    ended."""
    begin = week_begin(ended_at)
    key = (round(begin), user or "")
    row = session.get(WeekUse, key)
    if row is None:
        row = WeekUse(week_at=key[0], user_name=key[1], node_s=0.0)
        session.add(row)
        session.flush()  # another fragment that ends in this transaction finds it
    row.node_s += slots * max(0.0, ended_at - max(launched_at, begin))


def node_hours_used(session: Session, now: float) -> dict[str, float]:
    """The node-hours of each user in this calendar week, by the user's name. A fragment counts from its launch to
    its end, or to `now`."""
    begin = week_begin(now)
    ended = select(WeekUse.user_name, WeekUse.node_s).where(WeekUse.week_at == round(begin))
    start = case((Fragment.launched_at > begin, Fragment.launched_at), else_=begin)
    live = (
        select(Trainer.user_name, func.sum(Fragment.num_slots * (now - start)))
        .join(Fragment, Fragment.trainer_id == Trainer.id)
        .where(Fragment.is_live, Fragment.ended_at.is_(None))
        .group_by(Trainer.user_name)
    )
    used: defaultdict[str, float] = defaultdict(float)
    for user, seconds in (*session.execute(ended), *session.execute(live)):
        used[user or ""] += float(seconds) / 3600.0
    return dict(used)


def is_of_trainer_of(user: str) -> ColumnElement[bool]:
    """Condition of the fragments of a user's trainers, asked of each fragment: a user may have many trainers that
    have ended."""
    mine = select(Trainer.id).where(Trainer.id == Fragment.trainer_id, Trainer.user_name == user)
    return mine.correlate(Fragment).exists()


def live_trainers(session: Session, user: str) -> int:
    """Number of the user's live trainers."""
    return session.scalar(select(func.count()).select_from(Trainer).where(*live_of(user))) or 0


def storage_used_gib(readers: Sessions, user: str, checkpoints: Checkpoints) -> float:
    """GiB that the user's trainers' `checkpoints` take. Not for use within a transaction."""
    with readers.begin() as session:
        ids = session.scalars(select(Trainer.id).where(Trainer.user_name == user)).all()
    return checkpoints.size_bytes(ids) / _GIB


class NodeHours:
    """How many node-hours users have had this week; all sums are made at once and remembered for a minute."""

    def __init__(self) -> None:
        self._made_at, self._used = 0.0, dict[str, float]()

    def used(self, session: Session, user: str, now: float) -> float:
        """Node-hours that the user's fragments have had in this calendar week, up to a minute ago."""
        if not 0 <= now - self._made_at < _REMEMBERED_S or self._made_at < week_begin(now):
            self._made_at, self._used = now, node_hours_used(session, now)
        return self._used.get(user, 0.0)


def caps(
    session: Session, settings: Settings, users: Iterable[str], node_hours: NodeHours, now: float
) -> dict[str, int]:
    """User -> most nodes that the user's trainers may have now, for the users who have a limit: none at all once
    the week's node-hours are used up."""
    usual, own = usual_quota(settings), own_quotas(session, settings)
    by_user: dict[str, int] = {}
    for user in sorted(set(users)):
        quota = own.get(user, usual)
        if quota.node_hours is not None and node_hours.used(session, user, now) >= quota.node_hours:
            by_user[user] = 0
        elif quota.nodes is not None:
            by_user[user] = quota.nodes
    return by_user
