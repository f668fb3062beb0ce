"""Long work of the database is waited for as long as it gets on: an index of millions of rows takes minutes, and a
server that is stopped, or a disk that hangs, would be waited for for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError

from oakum_service.errors import ConfigurationError

_LOOK_S = 1.0
_SILENT_S = 20.0
"""Seconds for which PostgreSQL may answer no question at all."""
_STUCK_S = 60.0
"""Seconds for which SQLite may stay within one of its instructions: it waits for the disk then."""
_INSTRUCTIONS = 10_000
"""Of SQLite's virtual machine between two signs of life; some tenths of a millisecond."""

IsAlive = Callable[[], bool]
Result = TypeVar("Result")


def while_it_gets_on(engine: Engine, what: str, work: Callable[[], Result]) -> Result:
    """Do the work on the engine in a thread of its own, and return what it returns. Raises what it raises, and
    `ConfigurationError`, which says that `what` has waited, where the database no longer gets on with it."""
    on_sqlite = engine.dialect.name == "sqlite"
    done: Future[Result] = Future()
    thread = threading.Thread(target=_carry_out, args=(work, done), name="database: long work", daemon=True)
    with _signs_of_sqlite(engine) if on_sqlite else _answers_of_postgresql(engine) as is_alive:
        thread.start()
        _wait(done, is_alive, engine, what, _STUCK_S if on_sqlite else _SILENT_S)
    thread.join()
    return done.result()


def _carry_out(work: Callable[[], Result], done: Future[Result]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def _wait(done: Future[Any], is_alive: IsAlive, engine: Engine, what: str, longest_s: float) -> None:
    seen_s = time.monotonic()
    while not wait([done], timeout=_LOOK_S).done:
        if is_alive():
            seen_s = time.monotonic()
        elif time.monotonic() - seen_s >= longest_s and not done.done():
            raise ConfigurationError(
                f"database {engine.url.render_as_string()}: {what} has waited {longest_s:g} s for "
                f"{_what_to_do(engine)}, then run this again: what was begun is undone"
            )


def _what_to_do(engine: Engine) -> str:
    if engine.dialect.name == "sqlite":
        return f"the disk of {engine.url.database}, which does not answer: see to its file system (`df`, `mount`)"
    return "the server, which does not answer: see that it runs (`pg_isready`)"


@contextmanager
def _signs_of_sqlite(engine: Engine) -> Iterator[IsAlive]:
    """Context that yields whether the engine's connections have computed anything since that was asked before."""
    computed = threading.Event()

    def watch(connection: Any, *_: Any) -> None:
        connection.set_progress_handler(computed.set, _INSTRUCTIONS)

    def leave(connection: Any, *_: Any) -> None:
        if connection is not None:
            connection.set_progress_handler(None, 0)

    def is_alive() -> bool:
        has_computed = computed.is_set()
        computed.clear()
        return has_computed

    event.listen(engine, "checkout", watch)
    event.listen(engine, "checkin", leave)
    try:
        yield is_alive
    finally:
        event.remove(engine, "checkout", watch)
        event.remove(engine, "checkin", leave)


@contextmanager
def _answers_of_postgresql(engine: Engine) -> Iterator[IsAlive]:
    """Context that yields whether the server answers a question on another connection."""
    reading = engine.execution_options(read_only=True, answer_s=_LOOK_S)

    def is_alive() -> bool:
        try:
            with reading.connect() as connection:
                connection.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True

    yield is_alive
