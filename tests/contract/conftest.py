"""A database with the newest schema, made once and copied for each test, and the API over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.api_under_test import ApiUnderTest, FakeScheduler
from oakum_service.db.engine import open_engine, upgrade


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the schema and nothing in it."""
    file = tmp_path_factory.mktemp("schema") / "oakum.db"
    engine = open_engine(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()
    return file


@pytest.fixture
def data_dir(empty_database: Path, tmp_path: Path) -> Path:
    """A data directory with an empty database in it."""
    shutil.copy(empty_database, tmp_path / "oakum.db")
    return tmp_path


@pytest.fixture
def scheduler() -> FakeScheduler:
    """What the service runs on; modules have others."""
    return FakeScheduler()


@pytest.fixture
def api(data_dir: Path, scheduler: FakeScheduler) -> Iterator[ApiUnderTest]:
    """The API of a service without a controller."""
    running = ApiUnderTest(data_dir, scheduler)
    yield running
    running.outbox.close()
    running.engine.dispose()
