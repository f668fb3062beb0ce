"""One controller at a time: a lease row with a fencing token that every write of a controller checks."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db.engine import Sessions
from oakum_service.db.models.installation import Lease
from oakum_service.documents.silence import Silence
from oakum_service.errors import LeaseLost

TERM_S = 6.0


def database_time(session: Session) -> float:
    """The time in Unix seconds by one clock for all processes that use the database: the server's on PostgreSQL,
    this machine's on SQLite."""
    if session.get_bind().dialect.name != "postgresql":
        return clock.now()
    return float(session.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one())


@dataclass(frozen=True)
class SeenOfScheduler:
    """What a controller has seen of the scheduler last."""

    closed: str = ""
    """Why it begins no job of ours, as a clause; empty if it does."""
    silence: Silence | None = None
    """Since when it has not answered; None if it does."""


def seen_of_scheduler(session: Session) -> SeenOfScheduler:
    """What the newest controller has seen of the scheduler."""
    columns = (Lease.closed, Lease.silent_since, Lease.silent_tried)
    row = session.execute(select(*columns).where(Lease.id == 1)).one_or_none()
    if row is None:
        return SeenOfScheduler()
    closed, since, tried = row
    return SeenOfScheduler(closed, None if since is None else Silence(since, tried))


def why_closed(session: Session) -> str:
    """Why the scheduler begins no job of ours, by the newest state that a controller has read; empty if it
    does."""
    return session.execute(select(Lease.closed).where(Lease.id == 1)).scalar_one_or_none() or ""


class LeaseHolder:
    """This process's claim to be the controller: takes, renews and gives up the lease, and opens transactions that
    check it."""

    def __init__(self, sessions: Sessions, *, alone: bool, on_taken: Callable[[], None] = lambda: None) -> None:
        """`alone`: no other process can use this database, so an earlier holder has ended and its term need not
        run out. `on_taken` is called whenever this process has become the holder."""
        self._sessions = sessions
        self._alone = alone
        self._on_taken = on_taken
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._token: int | None = None
        self._renewed_s = -math.inf

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lease, as far as it knows: another one may just have taken it."""
        return self._token is not None

    @property
    def needs_renewal(self) -> bool:
        """Whether a third of the term has passed since this process renewed the lease, and another may take it."""
        return not self._alone and clock.steady_s() - self._renewed_s > TERM_S / 3

    def acquire(self) -> bool:
        """Take the lease with a new token, or renew it; returns whether this process holds it now. It cannot be
        taken while another process holds it and its term lasts."""
        asked_s = clock.steady_s()
        with self._sessions.begin() as session:
            lease = session.execute(select(Lease).where(Lease.id == 1).with_for_update()).scalar_one_or_none()
            if lease is None:
                lease = Lease(id=1, holder=self.name, token=0, expires_at=0.0)
                session.add(lease)
            now = database_time(session)
            if self._token is not None and lease.token == self._token:
                lease.expires_at = now + TERM_S
                self._renewed_s = asked_s
                return True
            self._token = None
            if lease.expires_at > now and not self._alone:
                return False
            lease.token += 1
            lease.holder, lease.expires_at = self.name, now + TERM_S
            token = lease.token
        self._token, self._renewed_s = token, asked_s
        self._on_taken()
        return True

    def give_up(self) -> None:
        """Give the lease up, if this process holds it, so that another process can take it at once."""
        with self._sessions.begin() as session:
            lease = session.get(Lease, 1)
            if lease is not None and lease.token == self._token:
                lease.expires_at = 0.0
        self._token = None

    def note_snapshot(
        self, session: Session, taken_at: float, closed: str = "", silence: Silence | None = None
    ) -> SeenOfScheduler:
        """Record in the holder's transaction when it has read the scheduler's state, for the other processes, why
        the scheduler begins no job of ours, and since when it has not answered. Returns what was known before."""
        before = seen_of_scheduler(session)
        noted = {"snapshot_at": taken_at, "closed": closed}
        noted |= {"silent_since": silence and silence.since, "silent_tried": silence.tried if silence else ""}
        session.execute(update(Lease).where(Lease.id == 1).values(noted))
        return before

    def snapshot_at(self, session: Session) -> float | None:
        """When a holder, this one or an earlier one, last read the scheduler's state; None if none has yet."""
        return session.execute(select(Lease.snapshot_at).where(Lease.id == 1)).scalar_one_or_none()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction of the controller, which also renews the lease at its end. Raises `LeaseLost` and writes
        nothing if another controller has taken the lease."""
        with self._sessions.begin() as session:
            token = session.execute(
                select(Lease.token).where(Lease.id == 1).with_for_update()
            ).scalar_one_or_none()
            if token is None or token != self._token:
                self._token = None
                raise LeaseLost(f"{self.name} no longer holds the controller's lease")
            yield session
            if self.needs_renewal:
                expires_at = database_time(session) + TERM_S
                session.execute(update(Lease).where(Lease.id == 1).values(expires_at=expires_at))
                self._renewed_s = clock.steady_s()
