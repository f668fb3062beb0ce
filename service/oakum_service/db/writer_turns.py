"""Has the writers of one process take turns before they take a connection from the pool.

The database lets one of them write at a time. Those who waited for it there would hold all connections meanwhile,
so that nobody could read; and SQLite lets those who wait look again after pauses, in no order.
"""

from __future__ import annotations

import threading
from collections import deque

from sqlalchemy import event
from sqlalchemy.exc import TimeoutError as NoTurn
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

_HAS_TURN = "has_turn"


class WriterTurns:
    """A lock that goes to those who wait for it in the order in which they came."""

    def __init__(self, longest_s: float) -> None:
        """`longest_s`: the longest time that anybody waits, in seconds."""
        self._longest_s = longest_s
        self._lock = threading.Lock()
        self._is_taken = False
        self._waiting: deque[threading.Lock] = deque()
        """For each who waits, a lock that is released when it is their turn."""

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def take(self) -> None:
        """Wait for a turn. Raises SQLAlchemy's `TimeoutError` when none has come in time."""
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=self._longest_s):
            return
        with self._lock:
            if mine in self._waiting:  # otherwise it has come just now
                self._waiting.remove(mine)
                raise NoTurn(f"other writers have kept the database busy for {self._longest_s:g} s")

    def end(self) -> None:
        """End the turn: it is the next one's."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False


def take_turns(sessions: sessionmaker[Session], turns: WriterTurns) -> None:
    """Have each transaction of the sessions take a turn before it begins, and end it when it is over."""

    def begin(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None:
            turns.take()
            session.info[_HAS_TURN] = True

    def end(session: Session, transaction: SessionTransaction) -> None:
        if transaction.parent is None and session.info.pop(_HAS_TURN, False):
            turns.end()

    event.listen(sessions, "after_transaction_create", begin)
    event.listen(sessions, "after_transaction_end", end)
