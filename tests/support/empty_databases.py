"""Fixtures: a SQLite database with the newest schema, made once for each test process and copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

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
    with new_sessions(empty_database, tmp_path) as made:
        yield made


@contextmanager
def new_sessions(empty_database: Path, folder: Path) -> Iterator[Sessions]:
    """Sessions of a copy of the empty database in the folder."""
    engine = engine_of(Path(shutil.copy(empty_database, folder / "oakum.db")))
    yield open_sessions(engine)
    hand_back(engine)


_idle: list[Engine] = []


def engine_of(file: Path) -> Engine:
    """An engine of the service's kind for the SQLite file.

    It is one that another test has handed back, if there is one: that knows most statements, and to compile a
    statement takes longer than to run it.
    """
    if not _idle:
        made = open_engine(f"sqlite:///{file}")

        def connect_to_its_file(*arguments: list[str | None]) -> None:
            arguments[2][0] = made.url.database

        event.listen(made, "do_connect", connect_to_its_file)
        return made
    engine = _idle.pop()
    engine.url = engine.url.set(database=str(file))
    return engine


def hand_back(engine: Engine) -> None:
    """Close what the engine has open, and keep it for another test."""
    engine.dispose()
    _idle.append(engine)
