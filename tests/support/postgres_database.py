"""Fixtures: databases on PostgreSQL, and what tests see that run on SQLite as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from api_under_test import ApiUnderTest
from oakum_service.db.engine import Sessions, open_engine, open_readers, open_sessions
from postgres_server import ON_POSTGRES, PostgresServer
from postgres_server import postgres as postgres

on_both_databases = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=ON_POSTGRES)], indirect=True
)
"""Runs a test of the API on SQLite and on PostgreSQL: for what differs between databases."""


@pytest.fixture
def empty_url(postgres: PostgresServer) -> str:
    """The URL of a database without tables."""
    return postgres.new_database()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The URL of a database with the newest schema."""
    return postgres.new_database_with_schema()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    engine = open_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    return open_sessions(engine)


@pytest.fixture
def api(url: str, tmp_path: Path) -> Iterator[ApiUnderTest]:
    running = ApiUnderTest(tmp_path, url=url)
    yield running
    running.news_for_readers.close()
    running.engine.dispose()


def is_blocked(engine: Engine) -> bool:
    """Whether a session waits for another's lock, or a writer of this engine for its turn."""
    if engine.get_execution_options()["writer_turns"].num_waiting:
        return True
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with open_readers(engine).begin() as session:
        return bool(session.execute(waiting).scalar_one())
