"""One controller at a time: a lease row with a fencing token that every write of the controller checks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import select
from sqlalchemy.orm import Session

from oakum_service.config import this_host
from oakum_service.db.engine import Sessions
from oakum_service.db.models import Lease
from oakum_service.errors import LeaseLost

TERM_S = 15.0


class LeaseHolder:
    """This process's claim to be the controller."""

    def __init__(self, sessions: Sessions, *, alone: bool) -> None:
        """`alone`: no other process can use this database, so an old holder is dead and not waited for."""
        self._sessions = sessions
        self._alone = alone
        self.name = f"{this_host()}:{os.getpid()}"
        self._token: int | None = None

    def acquire(self) -> bool:
        """Take or renew the lease; False while another process holds it."""
        now = time.time()
        with self._sessions.begin() as session:
            lease = session.execute(select(Lease).where(Lease.id == 1).with_for_update()).scalar_one_or_none()
            if lease is None:
                lease = Lease(id=1, holder=self.name, token=0, expires_at=0.0)
                session.add(lease)
            if self._token is not None and lease.token == self._token:
                lease.expires_at = now + TERM_S
                return True
            self._token = None
            if lease.expires_at > now and not self._alone:
                return False
            lease.token += 1
            lease.holder, lease.expires_at = self.name, now + TERM_S
            token = lease.token
        self._token = token
        return True

    def give_up(self) -> None:
        """End the term, so that another process need not wait for it to run out."""
        with self._sessions.begin() as session:
            lease = session.get(Lease, 1)
            if lease is not None and lease.token == self._token:
                lease.expires_at = 0.0
        self._token = None

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A transaction of the controller. Raises `LeaseLost` and writes nothing when the token is not ours."""
        with self._sessions.begin() as session:
            token = session.execute(
                select(Lease.token).where(Lease.id == 1).with_for_update()
            ).scalar_one_or_none()
            if token is None or token != self._token:
                raise LeaseLost(f"{self.name} no longer holds the controller's lease")
            yield session
