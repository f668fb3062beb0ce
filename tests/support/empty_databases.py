"""Fixtures: a SQLite database with the newest schema, made once for each test process and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_service.db.engine import Sessions, open_engine, open_sessions, upgrade


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema and nothing in it."""
    file = tmp_path_factory.mktemp("schema") / "oakum.db"
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()
    return file


@pytest.fixture
def sessions(empty_database: Path, tmp_path: Path) -> Iterator[Sessions]:
    """Sessions of an empty database."""
    engine = open_engine(f"sqlite:///{shutil.copy(empty_database, tmp_path / 'oakum.db')}")
    yield open_sessions(engine)
    engine.dispose()
