"""Notices when the database cannot be written, so that a full disk does not freeze the service without a word."""

from __future__ import annotations

import logging
import sqlite3
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.orm import Session

from oakum_service.db.engine import Sessions

_log = logging.getLogger("oakum")
_SQLITE = {
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "the disk fails, or is full",
    sqlite3.SQLITE_READONLY: "the file is read-only",
    sqlite3.SQLITE_CANTOPEN: "the file cannot be opened",
}
_POSTGRESQL = {"53100": "its disk is full", "25006": "it is read-only"}
_WROTE = "wrote"


class Writability:
    """Remembers whether the last attempt to write to the database succeeded. Any thread may read `fault`."""

    def __init__(self, where: str) -> None:
        """`where`: the database's name for an administrator, without its password."""
        self._where = where
        self.fault: str | None = None
        """Why the service cannot write, and what to do; None while it can."""

    def watch(self, engine: Engine, *writers: Sessions) -> None:
        """From now on, observe every error of the engine and every commit of the sessions that write."""
        event.listen(engine, "handle_error", self._on_error)
        for sessions in writers:
            event.listen(sessions, "after_flush", _note_write)
            event.listen(sessions, "after_commit", self._on_commit)

    def _on_error(self, context: ExceptionContext) -> None:
        if (reason := _reason(context.original_exception)) is None:
            return
        earlier, self.fault = self.fault, self._sentence(reason)
        if earlier is None:
            _log.error("%s", self.fault)

    def _on_commit(self, session: Session) -> None:
        if session.info.pop(_WROTE, False) and self.fault is not None:
            self.fault = None
            _log.warning("the service can write to its database again")

    def _sentence(self, reason: str) -> str:
        return (
            f"the service cannot write to its database, {self._where}: {reason}. What is shown is as old as that, "
            "and nothing is launched, released or submitted; what trains goes on. Free space there or make it "
            "writable: the service then goes on by itself"
        )


def is_busy(error: BaseException | None) -> bool:
    """Whether the same work would succeed after a while: another process has locked the database, or its server
    does not take connections."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None) or 0
        return code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    state = getattr(error, "sqlstate", "none")
    # No state: the connection broke, or was never made. 08: connection; 40, 55P03: locks; 53, 57P: short of means.
    broken = state is None and "OperationalError" in {kind.__name__ for kind in type(error).__mro__}
    return broken or str(state).startswith(("08", "40", "53", "55P03", "57P"))


def _note_write(session: Session, _: Any) -> None:
    session.info[_WROTE] = True


def _reason(error: BaseException | None) -> str | None:
    """Text on what keeps the database from being written, such as a full disk; None if the error has another
    cause."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return None if code is None else _SQLITE.get(code & 0xFF)
    return _POSTGRESQL.get(getattr(error, "sqlstate", None) or "")
