"""The engine, its sessions, and the schema brought up to date."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session, sessionmaker

from oakum_service.errors import ConfigurationError

Sessions = sessionmaker[Session]


def open_engine(url: str) -> Engine:
    """An engine for SQLite or PostgreSQL. SQLite runs in WAL mode and takes its write lock at BEGIN."""
    parsed = make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return create_engine(parsed.set(drivername="postgresql+psycopg"), pool_pre_ping=True, pool_size=10)
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


def open_sessions(engine: Engine) -> Sessions:
    """Sessions that write."""
    return sessionmaker(engine, expire_on_commit=False)


def open_readers(engine: Engine) -> Sessions:
    """Sessions that only read; on SQLite they never wait for a writer."""
    return sessionmaker(engine.execution_options(read_only=True), expire_on_commit=False)


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


def upgrade(engine: Engine) -> None:
    """Bring the schema to the newest revision."""
    command.upgrade(_alembic(engine), "head")


def downgrade(engine: Engine, revision: str) -> None:
    """Take the schema back to a revision (`base` removes everything)."""
    command.downgrade(_alembic(engine), revision)


def check_schema(engine: Engine) -> None:
    """Raise `ConfigurationError` when the schema is not the newest."""
    newest = ScriptDirectory.from_config(_alembic(engine)).get_current_head()
    with engine.connect() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
    if present != newest:
        raise ConfigurationError(
            f"the database's schema is at revision {present}, expected {newest}: run `oakum db upgrade`"
        )
