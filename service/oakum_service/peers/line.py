"""The line between processes of the service that share a PostgreSQL database: LISTEN and NOTIFY.

Messages that wait to be sent are sent once if they are alike, so thousands of changes a second become some tens of
messages. A connection that breaks is opened again; what was sent meanwhile is lost, so those who listen are then
told that anything may have changed.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

_log = logging.getLogger("oakum")
_CHANNEL = "oakum"
_GATHERING_S = 0.02
"""Seconds between two transmissions, in which messages gather."""
_AGAIN_S = 1.0
_LOOK_UP_S = 1.0
LONGEST = 7000
"""Most bytes of a message's text; PostgreSQL takes no message of 8,000 bytes and more."""

Hear = Callable[[str], None]


class Line(Protocol):
    """A line to the other processes of the service."""

    def hear(self, topic: str, act: Hear) -> None:
        """Have `act` called, in a thread of the line, with the text of every message on the topic from another
        process, and with an empty text when messages may have been lost. To be called before `open`."""

    def tell(self, topic: str, text: str = "") -> None:
        """Send a message to the other processes, soon. Returns at once; any thread may call it."""

    def open(self) -> None:
        """Begin to send and to hear."""

    def close(self) -> None:
        """Send what waits, if the database answers, and end."""


class NoLine:
    """The line of a service that is alone with its database."""

    def hear(self, topic: str, act: Hear) -> None:
        """There is nobody to hear."""

    def tell(self, topic: str, text: str = "") -> None:
        """There is nobody to tell."""

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PostgresLine:
    """A line through the database, on two connections of its own: one sends, one listens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._own = uuid.uuid4().hex[:12]
        self._acts: dict[str, Hear] = {}
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, str], None] = {}
        self._closing = False
        self._threads = [
            threading.Thread(target=self._repeat, args=(work,), name=f"peers: {name}", daemon=True)
            for name, work in (("send", self._send_all), ("listen", self._listen))
        ]

    def hear(self, topic: str, act: Hear) -> None:
        """Have `act` called with what other processes tell on the topic; see `Line`."""
        self._acts[topic] = act

    def tell(self, topic: str, text: str = "") -> None:
        """Send a message soon. Raises `ValueError` if the text is longer than `LONGEST` bytes."""
        if len(text.encode()) > LONGEST:
            raise ValueError(f"a message of {len(text.encode())} bytes: expected {LONGEST} at most")
        with self._changed:
            self._waiting[topic, text] = None
            self._changed.notify_all()

    def open(self) -> None:
        """Start the two threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Send what waits, if the database answers within 2 s, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(2 * _LOOK_UP_S)

    def _repeat(self, work: Callable[[psycopg.Connection], None]) -> None:
        """Do the work on a connection; on a new one after each failure, until the line is closed."""
        while True:
            try:
                with self._connection() as connection:
                    work(connection)
            except (psycopg.Error, DBAPIError) as error:
                if not self._closing:
                    _log.warning("the line to the service's other processes broke: %s", str(error).strip())
            with self._changed:
                if self._closing or self._changed.wait_for(lambda: self._closing, _AGAIN_S):
                    return

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection]:
        """A connection outside the engine's pool and without transactions."""
        pooled = self._engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()
        assert isinstance(connection, psycopg.Connection)
        connection.rollback()
        connection.autocommit = True
        with connection:
            yield connection

    def _send_all(self, connection: psycopg.Connection) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                messages = list(self._waiting)
            for topic, text in messages:
                connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, f"{self._own} {topic} {text}"))
                # Only now: what could not be sent is sent on the next connection.
                with self._changed:
                    self._waiting.pop((topic, text), None)
            with self._changed:
                if self._closing and not self._waiting:
                    return
                self._changed.wait_for(lambda: self._closing, _GATHERING_S)

    def _listen(self, connection: psycopg.Connection) -> None:
        connection.execute(f"LISTEN {_CHANNEL}")
        for act in self._acts.values():
            act("")
        while not self._closing:
            for message in connection.notifies(timeout=_LOOK_UP_S):
                self._take(message.payload)

    def _take(self, payload: str) -> None:
        sender, _, rest = payload.partition(" ")
        topic, _, text = rest.partition(" ")
        act = self._acts.get(topic)
        if sender == self._own or act is None:
            return
        try:
            act(text)
        except Exception:
            _log.exception("a message of another process of the service on %s", topic)


def open_line(engine: Engine, *, alone: bool) -> Line:
    """The line to the other processes that use the engine's database; one that leads nowhere if this process is
    `alone` with it."""
    return NoLine() if alone else PostgresLine(engine)
