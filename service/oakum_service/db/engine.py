"""Opens the database engine and its sessions, and brings the schema up to date."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from oakum_service.db.stalls import while_it_gets_on
from oakum_service.db.url import parse_url
from oakum_service.db.writer_turns import WriterTurns, take_turns
from oakum_service.errors import ConfigurationError
from oakum_service.files.data_dir import keep_private

Sessions = sessionmaker[Session]

_WRITERS = 0x6F616B756D
"""Key of the PostgreSQL advisory lock that every writer takes; "oakum" in ASCII."""
_LONGEST_PAUSE_S = 7.0
"""Between two statements of a transaction that writes, on PostgreSQL. A service that is stopped within one has
every other writer wait: the server then ends its connection, and another takes over, within 10 s in all."""


_READ_S, _WRITE_S = 20.0, 40.0
"""Within which PostgreSQL has to answer a statement of a session. A writer may wait for another one's pause."""
_POOL_S = 10.0
_SQLITE_S = 10.0
"""Within which SQLite's lock has to come."""
_LOCKS_S = 60.0
"""Within which PostgreSQL's locks have to come to a change of the schema."""
_CONNECTIONS = 16
"""Kept to SQLite's file: about as many threads read at once."""
_TURNS = "writer_turns"
_LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's code for a lock that has not come in time."""


def open_engine(url: str) -> Engine:
    """An engine for SQLite in WAL mode or for PostgreSQL. On both, writing transactions run one after the other
    from their BEGIN on.

    What a transaction has looked up (a free name, an unused key) therefore still holds when it commits, and events
    become visible in the order of their ids. Exception: the sessions of `open_reporters` on PostgreSQL do not wait
    for other writers. Raises `ConfigurationError` for another kind of database.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        engine = create_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_pre_ping=True,
            pool_size=10,
            pool_timeout=_POOL_S,
            json_serializer=_json_text,
            execution_options={_TURNS: WriterTurns(_WRITE_S)},
        )
        # Late: SQLite needs no psycopg.
        from oakum_service.db.patience import make_patient

        make_patient(engine)
        # Before SQLAlchemy's own first questions, whose answers it cannot read in another encoding.
        event.listen(engine, "connect", _refuse_other_encodings, insert=True)
        event.listen(engine, "connect", _prepare_postgresql)
        event.listen(engine, "begin", _take_turns)
        return engine
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(f"database {parsed.render_as_string()}: expected sqlite:/// or postgresql://")
    engine = create_engine(
        parsed,
        connect_args={"timeout": _SQLITE_S},
        pool_size=_CONNECTIONS,
        pool_timeout=_POOL_S,
        json_serializer=_json_text,
        execution_options={_TURNS: WriterTurns(_SQLITE_S)},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _json_text(value: Any) -> str:
    """The value as JSON. Halves of surrogate pairs, which a user's code may have sent and no reader of JSON has to
    accept, are replaced by U+FFFD: one that was stored would stop every turn of the controller."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _prepare_sqlite(connection, _record) -> None:  # type: ignore[no-untyped-def]
    # The driver must not begin transactions by itself: BEGIN IMMEDIATE below does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_immediate(connection) -> None:  # type: ignore[no-untyped-def]
    # Under WAL, a transaction that reads first fails at its first write if another one wrote in between, and no
    # busy timeout helps. So a writer locks at BEGIN; a reader is marked read-only and takes no lock.
    mode = "DEFERRED" if connection.get_execution_options().get("read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


def _refuse_other_encodings(connection, _record) -> None:  # type: ignore[no-untyped-def]
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        name = connection.info.dbname
        raise ConfigurationError(
            f"database {name}: its encoding is {encoding}, expected UTF8: make another one, as by `createdb "
            f"--encoding UTF8 --template template0 {name}_utf8`, and name it in OAKUM_DATABASE_URL"
        )


def _prepare_postgresql(connection, _record) -> None:  # type: ignore[no-untyped-def]
    from psycopg.types.string import StrDumperUnknown

    class NulFree(StrDumperUnknown):
        # PostgreSQL's texts cannot hold NUL, and a message of the user's code may contain it.
        def dump(self, obj: str):  # type: ignore[no-untyped-def]
            return super().dump(obj.replace("\0", "\ufffd"))

    connection.adapters.register_dumper(str, NulFree)
    if has_pooler(connection):
        # A pooler may give each transaction another of the server's processes, and a statement is prepared in one.
        connection.prepare_threshold = None


def has_pooler(connection: Any) -> bool:
    """Whether a pooler such as PgBouncer stands between the driver's connection and the server: the number of the
    process that answers is then another one than the driver was told."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (answering,) = cursor.fetchone()
    connection.rollback()
    return bool(answering != connection.info.backend_pid)


def _take_turns(connection) -> None:  # type: ignore[no-untyped-def]
    options = connection.get_execution_options()
    connection.connection.driver_connection.answer_s = options.get("answer_s")
    if options.get("read_only"):
        return
    # All in one statement: each costs a way to the server and back. The limits end with the transaction.
    pause_ms = round(1000 * options.get("longest_pause_s", _LONGEST_PAUSE_S))
    limit = f"set_config('idle_in_transaction_session_timeout', '{pause_ms}', true)"
    if (locks_s := options.get("locks_s")) is not None:
        limit += f", set_config('lock_timeout', '{round(1000 * locks_s)}', true)"
    turn = "" if options.get("out_of_turn") else f", pg_advisory_xact_lock({_WRITERS})"
    connection.exec_driver_sql(f"SELECT {limit}{turn}")


def open_sessions(engine: Engine) -> Sessions:
    """Sessions that may write. Those of one engine take turns."""
    sessions = sessionmaker(engine.execution_options(answer_s=_WRITE_S), expire_on_commit=False)
    take_turns(sessions, engine.get_execution_options()[_TURNS])
    return sessions


def reading(engine: Engine) -> Engine:
    """The engine for transactions that only read: they take no turn, and have their answers in time."""
    return engine.execution_options(read_only=True, answer_s=_READ_S)


def open_readers(engine: Engine) -> Sessions:
    """Sessions that only read; on SQLite they never wait for a writer."""
    return sessionmaker(reading(engine), expire_on_commit=False)


def open_reporters(engine: Engine) -> Sessions:
    """Sessions that write agents' reports and nothing else. On PostgreSQL they do not wait for other writers:
    thousands of agents report every second, each into a row of its own, which others only read."""
    options = engine.execution_options(out_of_turn=True, answer_s=_WRITE_S)
    sessions = sessionmaker(options, expire_on_commit=False)
    if engine.dialect.name == "sqlite":
        take_turns(sessions, engine.get_execution_options()[_TURNS])
    return sessions


def migrations_dir() -> Path:
    """Folder of the migrations: inside the installed package, or at the top of a checkout. Raises
    `ConfigurationError` where it is missing."""
    installed = Path(__file__).resolve().parent.parent / "_migrations"
    if installed.is_dir():
        return installed
    checkout = Path(__file__).resolve().parents[3] / "migrations"
    if checkout.is_dir():
        return checkout
    raise ConfigurationError("the migrations are missing from this installation: install oakum again")


def _alembic(engine: Engine) -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_dir()))
    config.attributes["engine"] = engine.execution_options(locks_s=_LOCKS_S)
    return config


@contextmanager
def reachable(engine: Engine) -> Iterator[None]:
    """Context in which errors of a database that does not answer, or is damaged, become `ConfigurationError`s that
    say what to do."""
    try:
        yield
    except OperationalError as error:
        raise ConfigurationError(
            f"database {engine.url.render_as_string()}: {str(error.orig).strip()}: {_advice(error.orig)}"
        ) from error
    except DatabaseError as error:
        if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF not in (
            sqlite3.SQLITE_CORRUPT,
            sqlite3.SQLITE_NOTADB,
        ):
            raise
        raise ConfigurationError(
            f"database {engine.url.render_as_string()}: {error.orig}: the file is damaged. Put a backup in its "
            "place, or move it and its -wal and -shm files away to begin anew; trainers' checkpoints are not in it"
        ) from error


def _advice(fault: BaseException | None) -> str:
    if getattr(fault, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
        return (
            f"another process has kept it for {_SQLITE_S:g} s: wait until a backup or an upgrade is over, or stop "
            "the service that uses it (`fuser` names who has the file open), then run this again"
        )
    if getattr(fault, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
        return (
            f"another transaction has kept what is to be changed for {_LOCKS_S:g} s: stop the services that use "
            "the database, or end the session that `SELECT pid, query FROM pg_stat_activity` shows, then run this "
            "again"
        )
    return "check OAKUM_DATABASE_URL and that the server runs"


def migration_scripts(engine: Engine) -> ScriptDirectory:
    """The migrations."""
    return ScriptDirectory.from_config(_alembic(engine))


@cache
def newest_revision() -> str | None:
    """The revision of the schema that this version of Oakum works with."""
    return ScriptDirectory(str(migrations_dir())).get_current_head()


def present_revision(session: Session) -> str | None:
    """The revision of the database's schema; None for a database without one."""
    return MigrationContext.configure(session.connection()).get_current_revision()


def upgrade(engine: Engine) -> None:
    """Bring the schema to the newest revision.

    SQLite's file is made, or made again, readable by its owner only. Raises `ConfigurationError` if the database
    does not answer or no longer does, somebody else keeps it locked, or a newer version of Oakum has made its
    schema.
    """

    def work() -> None:
        _keep_file_private(engine)
        with reachable(engine):
            command.upgrade(_alembic(engine), "head")

    try:
        while_it_gets_on(engine, "the upgrade of its schema", work)
    except CommandError as error:
        raise ConfigurationError(
            f"the database's schema cannot be upgraded: {error}: a newer version of Oakum has made it"
        ) from error


def _keep_file_private(engine: Engine) -> None:
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name == ":memory:":
        return
    file = Path(name)
    with suppress(OSError):  # the connection will say what is wrong
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    for each in (file, Path(f"{file}-wal"), Path(f"{file}-shm")):
        if each.is_file():
            keep_private(each)


def downgrade(engine: Engine, revision: str) -> None:
    """Take the schema back to `revision`; `base` removes all tables. Raises `ConfigurationError` if the database
    does not answer or no longer does, or somebody else keeps it locked."""

    def work() -> None:
        with reachable(engine):
            command.downgrade(_alembic(engine), revision)

    while_it_gets_on(engine, "the way back to an earlier schema", work)


def check_schema(engine: Engine) -> None:
    """Raise `ConfigurationError` if the schema is not at the newest revision, or the database does not answer."""
    newest = newest_revision()
    with reachable(engine), reading(engine).connect() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
    if present != newest:
        raise ConfigurationError(
            f"the database's schema is at revision {present}, expected {newest}: run `oakum db upgrade`"
        )
