"""Checks the way to the service's database, where that is on a server."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

from oakum_service.config import Settings
from oakum_service.db.engine import has_pooler, open_engine, reading
from oakum_service.errors import ConfigurationError
from oakum_service.schedulers.slurm.preflight.finding import PreflightFinding, error, note, ok


def check(settings: Settings) -> list[PreflightFinding]:
    """Connect to the database, and see whether a pooler stands before it. Returns the finding; none for SQLite."""
    if not settings.database.startswith("postgres"):
        return []
    try:
        engine = reading(open_engine(settings.database))
        try:
            with engine.connect() as connection:
                pooled = has_pooler(connection.connection.driver_connection)
        finally:
            engine.dispose()
    except (ConfigurationError, SQLAlchemyError) as failure:
        fault = str(getattr(failure, "orig", None) or failure).splitlines()[0]
        change = "OAKUM_DATABASE_URL=postgresql://user:password@host:5432/database, from a host that may connect"
        return [error("database", fault, change)]
    return [judge(pooled)]


def judge(pooled: bool) -> PreflightFinding:
    """The finding on a database that answers; `pooled`: whether a pooler such as PgBouncer stands before it."""
    if not pooled:
        return ok("database", "it answers")
    return note(
        "database",
        "a pooler such as PgBouncer stands before it: no statement is prepared, which costs some time for each",
        "OAKUM_DATABASE_URL with the server's own host and port; PgBouncer may stay, with pool_mode=transaction",
    )
