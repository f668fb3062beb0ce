"""The engine, its sessions, and the schema brought up to date."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from oakum_service.errors import ConfigurationError

Sessions = sessionmaker[Session]

_WRITERS = 0x6F616B756D
"""Key of the advisory lock of everyone who writes; "oakum" in ASCII."""


def open_engine(url: str) -> Engine:
    """An engine for SQLite, in WAL mode, or PostgreSQL. On both, transactions that write take turns from BEGIN on.

    So what a transaction has looked up (a free name, an unused key) still holds when it commits, and events become
    visible in the order of their ids. Those of `open_reporters` do not on PostgreSQL. Raises `ConfigurationError`
    for another database.
    """
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise ConfigurationError("the database's URL is none: expected sqlite:/// or postgresql://") from error
    if parsed.get_backend_name() == "postgresql":
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, pool_size=10)
        event.listen(engine, "connect", _prepare_postgresql)
        event.listen(engine, "begin", _take_turns)
        return engine
    if parsed.get_backend_name() != "sqlite":
        raise ConfigurationError(f"database {parsed.render_as_string()}: expected sqlite:/// or postgresql://")
    engine = create_engine(parsed, connect_args={"timeout": 10.0})
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def _prepare_sqlite(connection, _record) -> None:  # type: ignore[no-untyped-def]
    # The driver must not begin transactions by itself: BEGIN IMMEDIATE below does.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_immediate(connection) -> None:  # type: ignore[no-untyped-def]
    # A transaction that reads first and writes later fails at once under WAL when another wrote in between, and
    # no busy timeout helps; a reader says so and takes no lock.
    mode = "DEFERRED" if connection.get_execution_options().get("read_only") else "IMMEDIATE"
    connection.exec_driver_sql(f"BEGIN {mode}")


def _prepare_postgresql(connection, _record) -> None:  # type: ignore[no-untyped-def]
    from psycopg.types.string import StrDumperUnknown

    class NulFree(StrDumperUnknown):
        # PostgreSQL has no NUL in its texts, and an error of the user's code may well have one.
        def dump(self, obj: str):  # type: ignore[no-untyped-def]
            return super().dump(obj.replace("\0", "\ufffd"))

    connection.adapters.register_dumper(str, NulFree)


def _take_turns(connection) -> None:  # type: ignore[no-untyped-def]
    options = connection.get_execution_options()
    if not options.get("read_only") and not options.get("out_of_turn"):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")


def open_sessions(engine: Engine) -> Sessions:
    """Sessions that write."""
    return sessionmaker(engine, expire_on_commit=False)


def open_readers(engine: Engine) -> Sessions:
    """Sessions that only read; on SQLite they never wait for a writer."""
    return sessionmaker(engine.execution_options(read_only=True), expire_on_commit=False)


def open_reporters(engine: Engine) -> Sessions:
    """Sessions that write reports and nothing else. On PostgreSQL they wait for no other writer: thousands of
    agents report every second, each into a row of its own that others only read."""
    return sessionmaker(engine.execution_options(out_of_turn=True), expire_on_commit=False)


def migrations_dir() -> Path:
    """Folder of the migrations: inside the installed package, or at the top of a checkout."""
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
    config.attributes["engine"] = engine
    return config


@contextmanager
def _reachable(engine: Engine) -> Iterator[None]:
    try:
        yield
    except OperationalError as error:
        raise ConfigurationError(
            f"database {engine.url.render_as_string()}: {str(error.orig).strip()}: "
            "check OAKUM_DATABASE_URL and that the server runs"
        ) from error


def upgrade(engine: Engine) -> None:
    """Bring the schema to the newest revision.

    Raises `ConfigurationError` when the database does not answer, or has a schema that is not known here.
    """
    try:
        with _reachable(engine):
            command.upgrade(_alembic(engine), "head")
    except CommandError as error:
        raise ConfigurationError(
            f"the database's schema cannot be upgraded: {error}: a newer version of Oakum has made it"
        ) from error


def downgrade(engine: Engine, revision: str) -> None:
    """Take the schema back to a revision (`base` removes everything)."""
    command.downgrade(_alembic(engine), revision)


def check_schema(engine: Engine) -> None:
    """Raise `ConfigurationError` when the schema is not the newest, or the database does not answer."""
    newest = ScriptDirectory.from_config(_alembic(engine)).get_current_head()
    with _reachable(engine), engine.connect() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
    if present != newest:
        raise ConfigurationError(
            f"the database's schema is at revision {present}, expected {newest}: run `oakum db upgrade`"
        )
