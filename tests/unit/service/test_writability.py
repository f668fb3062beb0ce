"""A database that cannot be written to is told of once, with what to do, until a write succeeds."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError, OperationalError

from oakum_service.db import stalls
from oakum_service.db.engine import Sessions, open_engine, open_sessions, upgrade
from oakum_service.db.writability import Writability
from oakum_service.errors import ConfigurationError
from oakum_service.identity import audit, tokens
from waiting import wait_until


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    engine = open_engine(f"sqlite:///{tmp_path}/oakum.db")
    upgrade(engine)
    return open_sessions(engine)


@pytest.fixture
def writability(sessions: Sessions) -> Writability:
    watched = Writability("the database")
    watched.watch(sessions.kw["bind"], sessions)
    return watched


def limit(sessions: Sessions, pages: int) -> None:
    """Limit the database to this many pages; 1 stands for its present number."""
    with sessions.begin() as session:
        session.execute(text(f"PRAGMA max_page_count = {pages}"))


def write(sessions: Sessions, count: int = 1) -> None:
    with sessions.begin() as session:
        for number in range(count):
            tokens.create(session, audit.local_actor(), f"{count}-{number}", "viewer")


def test_a_full_disk_is_told_of_until_there_is_space_again(
    sessions: Sessions, writability: Writability, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "oakum")
    limit(sessions, 1)
    for _ in range(2):
        with pytest.raises(OperationalError, match="full"):
            write(sessions, 2000)
    assert writability.fault is not None
    assert "cannot write to its database, the database: the disk is full" in writability.fault
    assert "Free space there" in writability.fault
    limit(sessions, 1_000_000)  # writes nothing
    assert writability.fault is not None
    write(sessions)
    assert writability.fault is None
    assert [record.message.split(",")[0] for record in caplog.records] == [
        "the service cannot write to its database",
        "the service can write to its database again",
    ]


def test_a_mistake_in_a_query_is_no_fault_of_the_disk(sessions: Sessions, writability: Writability) -> None:
    with pytest.raises(DBAPIError), sessions.begin() as session:
        session.execute(text("SELECT nothing"))
    assert writability.fault is None


def test_an_upgrade_waits_for_a_database_that_is_at_work_and_not_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalls, "_LOOK_S", 0.02)
    monkeypatch.setattr(stalls, "_STUCK_S", 0.2)
    engine = open_engine(f"sqlite:///{tmp_path}/oakum.db")

    def count() -> int:
        """Takes much longer than a disk is waited for."""
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000000)"
        with engine.connect() as connection:
            return int(connection.execute(text(f"{numbers} SELECT count(*) FROM n")).scalar_one())

    assert stalls.while_it_gets_on(engine, "its counting", count) == 5_000_000
    engine.dispose()
    answers = threading.Event()
    event.listen(engine, "connect", lambda *_: answers.wait())
    try:
        with pytest.raises(
            ConfigurationError,
            match=rf"the upgrade of its schema has waited 0\.2 s for the disk of {tmp_path}/oakum\.db, .*`df`",
        ):
            upgrade(engine)
    finally:
        answers.set()
    wait_until("its thread has ended", lambda: all("long work" not in one.name for one in threading.enumerate()))
    engine.dispose()


def test_who_keeps_a_file_locked_is_said_to_be_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_service.db.engine._SQLITE_S", 0.05)
    with closing(sqlite3.connect(tmp_path / "oakum.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        engine = open_engine(f"sqlite:///{tmp_path}/oakum.db")
        with pytest.raises(ConfigurationError, match=r"another process has kept it for 0\.05 s: .*`fuser`"):
            upgrade(engine)
    upgrade(engine)
    engine.dispose()


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_a_sentence_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "oakum.db").write_bytes(content)
    with pytest.raises(ConfigurationError, match="the file is damaged"):
        upgrade(open_engine(f"sqlite:///{tmp_path}/oakum.db"))
