"""The ledger: what each user's trainers had of the cluster in each month, what of it was lost, and how long others
waited for them.

Fragments are charged when they end, stalls and repeated steps when they are reported, delays of foreground jobs
when these start. Rows are kept for ever, so the sums outlive what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.db.models.usage import LedgerRecord


@dataclass
class LedgerSums:
    """What is charged to one user in one month: node-seconds, of parts of nodes slot-seconds, and seconds of
    delay."""

    lent_node_s: float = 0.0
    """From each fragment's launch to its end."""
    warm_up_node_s: float = 0.0
    """Part of it before each fragment's first generation."""
    grow_node_s: float = 0.0
    """Stalls because nodes joined, as are `shrink_node_s` and `loss_node_s` for nodes that left and that were
    lost."""
    shrink_node_s: float = 0.0
    loss_node_s: float = 0.0
    repeated_node_s: float = 0.0
    """Training of steps that had to be repeated."""
    foreground_delay_s: float = 0.0
    """Seconds that foreground jobs waited for the user's fragments. A wait for fragments of several users is
    shared equally."""
    ends: dict[str, int] = field(default_factory=dict)
    """Cause of fragments' ends, as `Fragment.cause` has it -> how many ended by it."""

    @property
    def lost_node_s(self) -> float:
        """Node-seconds that were lent and brought nothing."""
        return (
            self.warm_up_node_s + self.grow_node_s + self.shrink_node_s + self.loss_node_s + self.repeated_node_s
        )

    @property
    def trained_node_s(self) -> float:
        """Node-seconds that were lent and brought training further."""
        return max(0.0, self.lent_node_s - self.lost_node_s)


_COLUMNS = tuple(each.name for each in fields(LedgerSums) if each.name != "ends")


def month_of(at: float) -> str:
    """The month of a time in Unix seconds, by UTC: `2026-11`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m}"


def charge(session: Session, user: str | None, at: float, **amounts: float) -> None:
    """Add amounts, by the names of `LedgerSums`, to the user's sums of the month of `at`, in Unix seconds."""
    row = _row(session, user, at)
    for name, amount in amounts.items():
        setattr(row, name, getattr(row, name) + amount)


def _row(session: Session, user: str | None, at: float) -> LedgerRecord:
    key = (month_of(at), user or "")
    row = session.get(LedgerRecord, key)
    if row is None:
        row = LedgerRecord(month=key[0], user_name=key[1], ends={}, **dict.fromkeys(_COLUMNS, 0.0))
        session.add(row)
        session.flush()  # another charge of this transaction finds it
    return row


def charge_fragment(session: Session, user: str | None, fragment: Fragment, now: float) -> None:
    """Charge the node-time of a fragment that ends at `now`, in Unix seconds, each month its part, and count its
    end by its cause, which it has by now. One that never started had no node."""
    if fragment.cause == "never started":
        return
    row, cause = _row(session, user, now), fragment.cause or "unknown"
    row.ends = row.ends | {cause: row.ends.get(cause, 0) + 1}
    for name, begin, end in _spans(fragment, now):
        for at, seconds in _by_month(begin, end):
            charge(session, user, at, **{name: fragment.num_slots * seconds})


def ledger(
    session: Session, first: str, last: str, user: str | None, now: float
) -> dict[tuple[str, str], LedgerSums]:
    """(month, user) -> sums, from the month `first` to the month `last`, of one user or of all; fragments that
    have not ended count until `now`. Ordered by month, the newest first, then by user."""
    sums_of: dict[tuple[str, str], LedgerSums] = {}
    rows = select(LedgerRecord).where(LedgerRecord.month >= first, LedgerRecord.month <= last)
    if user is not None:
        rows = rows.where(LedgerRecord.user_name == user)
    for row in session.scalars(rows):
        columns = {name: getattr(row, name) for name in _COLUMNS}
        sums_of[row.month, row.user_name] = LedgerSums(**columns, ends=row.ends)
    live = select(Fragment, Trainer.user_name).join(Trainer, Trainer.id == Fragment.trainer_id)
    live = live.where(Fragment.is_live)
    if user is not None:
        live = live.where(Trainer.user_name == user)
    for fragment, owner in session.execute(live):
        for name, begin, end in _spans(fragment, now):
            for at, seconds in _by_month(begin, end):
                if first <= (month := month_of(at)) <= last:
                    sums = sums_of.setdefault((month, owner or ""), LedgerSums())
                    setattr(sums, name, getattr(sums, name) + fragment.num_slots * seconds)
    by_user = sorted(sums_of, key=lambda key: key[1])
    return {key: sums_of[key] for key in sorted(by_user, key=lambda key: key[0], reverse=True)}


def _spans(fragment: Fragment, now: float) -> Iterator[tuple[str, float, float]]:
    """Name of the sum, begin and end, of each span of the fragment's life that is charged."""
    yield "lent_node_s", fragment.launched_at, now
    yield "warm_up_node_s", fragment.launched_at, now if fragment.training_at is None else fragment.training_at


def _by_month(begin: float, end: float) -> Iterator[tuple[float, float]]:
    """(a time in the month, seconds in it) for each month of a span in Unix seconds."""
    while begin < end:
        day = datetime.fromtimestamp(begin, UTC)
        following = datetime(day.year + day.month // 12, day.month % 12 + 1, 1, tzinfo=UTC).timestamp()
        yield begin, min(end, following) - begin
        begin = following
