"""Connections to PostgreSQL that do not wait for ever: a server may take connections and answer nothing, as one
does that is stopped, swaps or waits for a disk."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from sqlalchemy import Engine, event

_CONNECT_S = 4
_FIRST_S = 10.0
_PING_S = 3.0


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is closed when the server does not answer in time."""

    answer_s: float | None = _FIRST_S
    """Seconds within which the server has to answer; None: no limit."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Called by psycopg to wait for the server. Raises `psycopg.OperationalError` when the time is over."""
        limit_s, began_s = self.answer_s, time.monotonic()
        if timeout is not None or limit_s is None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, limit_s)
        except psycopg.Error as error:
            if self.pgconn.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
                raise
            if time.monotonic() - began_s < limit_s:
                raise
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server has not answered for {limit_s:g} s") from error


def make_patient(engine: Engine) -> None:
    """Have the engine make patient connections. Whoever begins a transaction sets the limit for its statements."""
    event.listen(engine, "do_connect", _connect)
    event.listen(engine, "checkin", _set_ping_limit)


def _connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> PatientConnection:
    return PatientConnection.connect(*arguments, **{"connect_timeout": _CONNECT_S, **options})


def _set_ping_limit(connection: Any, _record: Any) -> None:
    # The next one to take it from the pool first asks whether the server is still there.
    if connection is not None:
        connection.answer_s = _PING_S
