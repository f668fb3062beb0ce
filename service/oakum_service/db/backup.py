"""Copies of the database, and what may be wrong with it."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from alembic.runtime.migration import MigrationContext
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection, Engine, func, inspect, select, text
from sqlalchemy.orm import Session

from oakum_service import clock
from oakum_service.db.engine import migration_scripts, reachable, reading
from oakum_service.db.models.base import Base
from oakum_service.db.models.installation import Lease
from oakum_service.db.stalls import while_it_gets_on
from oakum_service.errors import ConfigurationError

_PAGES_AT_ONCE = 2000
_MOST_FAULTS = 20
_CONNECT_S, _LOCKS_S = "10", "60"
"""Seconds for which `pg_dump` waits for a connection, and for a lock."""


@dataclass(frozen=True)
class Examination:
    """What a check of the database found."""

    database: str
    """Its address, without a password."""
    revision: str | None
    faults: list[str]
    """A sentence for each fault; empty if there is none."""


def back_up(engine: Engine, file: Path) -> int:
    """Copy the database into a new file, readable by its owner only, while others may write; the copy is of one
    moment. Returns its size in bytes.

    Raises `ConfigurationError` if the file exists or cannot be written, or `pg_dump` is missing or fails.
    """
    _refuse_missing(engine)
    if file.exists():
        raise ConfigurationError(f"{file} exists already: choose another name, so that no backup is lost")
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        os.close(descriptor)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    temporary = Path(name)
    try:
        if engine.dialect.name == "sqlite":
            _copy_sqlite(engine, temporary)
        else:
            _dump_postgresql(engine, temporary)
        os.link(temporary, file)
    except FileExistsError as error:
        raise ConfigurationError(f"{file} exists already: choose another name") from error
    finally:
        temporary.unlink()
    return file.stat().st_size


def _refuse_missing(engine: Engine) -> None:
    """Raise `ConfigurationError` where SQLite would make a new database in place of one that is missing."""
    name = engine.url.database
    if engine.dialect.name == "sqlite" and not (name and Path(name).is_file()):
        raise ConfigurationError(f"there is no database {name}: check OAKUM_DATA_DIR and OAKUM_DATABASE_URL")


def _copy_sqlite(engine: Engine, file: Path) -> None:
    with reachable(engine), engine.connect() as connection, closing(sqlite3.connect(file)) as copy:
        live = connection.connection.driver_connection
        assert isinstance(live, sqlite3.Connection)
        live.backup(copy, pages=_PAGES_AT_ONCE)


def _dump_postgresql(engine: Engine, file: Path) -> None:
    program = shutil.which("pg_dump")
    if program is None:
        raise ConfigurationError("pg_dump is not on PATH: install PostgreSQL's client programs")
    url = engine.url
    # A command line is there for all to see, so the password is not on it.
    environment = {"PGCONNECT_TIMEOUT": _CONNECT_S, **os.environ}
    if url.password:
        environment["PGPASSWORD"] = str(url.password)
    host, port = url.query.get("host") or url.host, url.query.get("port") or url.port
    words = {"--host": host, "--port": port, "--username": url.username}
    command = [program, "--format=custom", f"--file={file}", f"--dbname={url.database or ''}", "--no-password"]
    command.append(f"--lock-wait-timeout={_LOCKS_S}s")
    command += [f"{option}={value}" for option, value in words.items() if value]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigurationError(f"pg_dump failed: {done.stderr.strip() or done.returncode}")


def examine(engine: Engine) -> Examination:
    """Check revision, integrity, encoding, and that no row refers to one that is not there. Raises
    `ConfigurationError` if the database does not answer, or no longer does, or is damaged beyond reading."""
    _refuse_missing(engine)
    return while_it_gets_on(engine, "its check", lambda: _examined(engine))


def _examined(engine: Engine) -> Examination:
    newest = migration_scripts(engine).get_current_head()
    with reachable(engine), engine.execution_options(read_only=True).connect() as connection:
        revision = MigrationContext.configure(connection).get_current_revision()
        faults = []
        if revision != newest:
            faults.append(f"the schema is at revision {revision}, this version's is {newest}: `oakum db upgrade`")
        if engine.dialect.name == "sqlite":
            faults += _sqlite_faults(connection)
        if revision == newest:
            faults += _orphans(connection)
    return Examination(engine.url.render_as_string(), revision, faults)


def _sqlite_faults(connection: Connection) -> list[str]:
    lines = connection.execute(text(f"PRAGMA integrity_check({_MOST_FAULTS})")).scalars().all()
    return [f"SQLite's integrity check: {line}" for line in lines if line != "ok"]


def _orphans(connection: Connection) -> list[str]:
    """A sentence for each foreign key whose rows refer to nothing."""
    sentences, present = [], set(inspect(connection).get_table_names())
    for table in Base.metadata.sorted_tables:
        for key in table.foreign_keys:
            if not {table.name, key.column.table.name} <= present:
                continue
            missing = select(key.column).where(key.column == key.parent).exists()
            query = select(func.count()).select_from(table).where(key.parent.is_not(None), ~missing)
            if number := connection.scalar(query):
                sentences.append(
                    f"{number} rows of {table.name} refer by {key.parent.name} to no row of "
                    f"{key.column.table.name}"
                )
    return sentences


def revisions_after(engine: Engine, revision: str) -> list[str]:
    """Number and title of the migrations that have to be undone to go back to `revision`, the newest first. Raises
    `ConfigurationError` for a revision that is none, or a later one."""
    _refuse_missing(engine)
    scripts = migration_scripts(engine)
    with reachable(engine), reading(engine).connect() as connection:
        present = MigrationContext.configure(connection).get_current_revision()
    try:
        undone = [*scripts.iterate_revisions(present, revision)]
    except (CommandError, RevisionError) as error:
        known = ", ".join(script.revision for script in scripts.walk_revisions())
        raise ConfigurationError(f"{present} cannot go back to {revision!r}: expected one of {known}") from error
    return [f"{script.revision}  {(script.doc or '').splitlines()[0]}" for script in undone]


def refuse_downgrade(engine: Engine) -> None:
    """Raise `ConfigurationError` while a service uses the database."""
    with reachable(engine), Session(reading(engine)) as session:
        if "lease" not in inspect(session.connection()).get_table_names():
            return
        holder = session.execute(select(Lease.holder, Lease.expires_at)).first()
    if holder is not None and holder.expires_at > clock.now():
        raise ConfigurationError(f"a service uses the database ({holder.holder}): stop it first")
