"""A database with the newest schema, made once and copied for each test, and the API over it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from api_under_test import ApiUnderTest, FakeScheduler
from empty_databases import empty_database as empty_database
from postgres_server import PostgresServer
from postgres_server import postgres as postgres
from trained_scene import Scene, train_on_two_nodes


@pytest.fixture
def data_dir(empty_database: Path, tmp_path: Path) -> Path:
    """A data directory with an empty database in it."""
    shutil.copy(empty_database, tmp_path / "oakum.db")
    return tmp_path


@pytest.fixture
def scheduler() -> FakeScheduler:
    """The scheduler of the API under test; test modules override this fixture."""
    return FakeScheduler()


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str | None:
    """The URL of a database on PostgreSQL; None for that in the data directory, which tests have that are not
    marked `on_both_databases`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database_with_schema()


@pytest.fixture
def api(data_dir: Path, scheduler: FakeScheduler, database: str | None) -> Iterator[ApiUnderTest]:
    """The API of a service without a controller."""
    running = ApiUnderTest(data_dir, scheduler, database)
    yield running
    running.close()


@pytest.fixture
def scene(api: ApiUnderTest) -> Scene:
    """The API over the cluster of `trained_scene`."""
    return train_on_two_nodes(api)
