"""A database on PostgreSQL, with and without tables, and the API over it; `empty_url` is its URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from api_under_test import ApiUnderTest
from oakum_service.db.engine import (
    Sessions,
    open_engine,
    open_readers,
    open_sessions,
    upgrade,
)


@pytest.fixture
def empty_engine(empty_url: str) -> Iterator[Engine]:
    engine = open_engine(empty_url)
    yield engine
    engine.dispose()


@pytest.fixture
def engine(empty_engine: Engine) -> Engine:
    upgrade(empty_engine)
    return empty_engine


@pytest.fixture
def sessions(engine: Engine) -> Sessions:
    return open_sessions(engine)


@pytest.fixture
def api(engine: Engine, empty_url: str, tmp_path: Path) -> Iterator[ApiUnderTest]:
    running = ApiUnderTest(tmp_path, url=empty_url)
    yield running
    running.news_for_readers.close()
    running.engine.dispose()


def is_blocked(engine: Engine) -> bool:
    """Whether a session waits for another's lock."""
    waiting = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    with open_readers(engine).begin() as session:
        return bool(session.execute(waiting).scalar_one())
