"""`oakum db`: copies of a database in use, what is wrong with one, and the way back to an earlier revision."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.script import Script, ScriptDirectory
from sqlalchemy import text

from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.db.engine import migrations_dir, open_engine, open_sessions
from oakum_service.db.models.installation import Lease
from oakum_service.identity import audit, tokens

load_commands()
Output = Callable[[], tuple[str, str]]


@pytest.fixture
def database(empty_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of the newest schema, in the data directory that the commands use."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("OAKUM_DATABASE_URL", raising=False)
    return Path(shutil.copy(empty_database, tmp_path / "data" / "oakum.db"))


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr()


def two_newest() -> tuple[Script, str]:
    """The newest migration, and the revision that it follows."""
    newest = ScriptDirectory(str(migrations_dir())).get_revision("head")
    assert isinstance(newest.down_revision, str)
    return newest, newest.down_revision


def names_in(file: Path) -> list[str]:
    with sqlite3.connect(file) as connection:
        return [row[0] for row in connection.execute("SELECT name FROM tokens ORDER BY created_at")]


def test_a_copy_is_of_one_moment_while_others_write(database: Path, tmp_path: Path, output: Output) -> None:
    engine, written, stop = open_engine(f"sqlite:///{database}"), threading.Event(), threading.Event()
    sessions = open_sessions(engine)

    def write() -> None:
        number = 0
        while not stop.is_set():
            with sessions.begin() as session:
                # Two at a time: a copy has both or none.
                tokens.create(session, audit.local_actor(), f"a{number}", "user")
                tokens.create(session, audit.local_actor(), f"b{number}", "user")
            number += 1
            if number == 20:
                written.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert written.wait(240)
    copy = tmp_path / "copy.db"
    try:
        assert run(["db", "backup", str(copy)]) == 0
    finally:
        stop.set()
        thread.join()
        engine.dispose()
    names = names_in(copy)
    assert len(names) >= 40
    assert sum(name.startswith("a") for name in names) == sum(name.startswith("b") for name in names)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert output()[0] == f"{copy}: {copy.stat().st_size:,} bytes\n"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_a_copy_takes_the_place_of_the_database(database: Path, tmp_path: Path, output: Output) -> None:
    assert run(["token", "create", "alice"]) == 0
    assert run(["db", "backup", str(tmp_path / "copy.db")]) == 0
    assert run(["token", "create", "bob"]) == 0
    for left in database.parent.glob("oakum.db*"):
        left.unlink()
    shutil.copy(tmp_path / "copy.db", database)
    assert run(["db", "check"]) == 0
    assert names_in(database) == ["alice"]


def test_no_backup_is_lost(database: Path, tmp_path: Path, output: Output) -> None:
    (tmp_path / "there.db").write_text("precious")
    assert run(["db", "backup", str(tmp_path / "there.db")]) == 1
    assert "exists already: choose another name" in output()[1]
    assert (tmp_path / "there.db").read_text() == "precious"
    assert run(["db", "backup", str(tmp_path / "no" / "folder.db")]) == 1
    assert "No such file" in output()[1]


@pytest.mark.parametrize("command", [["backup", "copy.db"], ["check"], ["downgrade", "0018"]])
def test_a_database_that_is_missing_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], output: Output
) -> None:
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("OAKUM_DATABASE_URL", raising=False)
    assert run(["db", *command]) == 1
    assert output()[1] != ""


def test_a_sound_database_is_sound(database: Path, output: Output) -> None:
    assert run(["db", "check", "--json"]) == 0
    found = json.loads(output()[0])
    assert (found["faults"], found["database"]) == ([], f"sqlite:///{database}")
    assert found["revision"] >= "0020"


def test_rows_that_refer_to_nothing_are_counted(database: Path, output: Output) -> None:
    with sqlite3.connect(database) as connection:
        for number in range(3):
            connection.execute(
                "INSERT INTO fragments (id, trainer_id, node, state, released, preempted, launched_at, "
                "cause, crashes,"
                " warnings) VALUES (?, 'gone', 'n1', 'ended', 0, 0, 1.0, '', 0, '[]')",
                (f"f{number}",),
            )
    assert run(["db", "check"]) == 1
    assert "3 rows of fragments refer by trainer_id to no row of trainers" in output()[0]


def test_a_damaged_file_is_told(database: Path, output: Output) -> None:
    with sqlite3.connect(database) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    content = bytearray(database.read_bytes())
    for at in range(4096 * 4, len(content), 97):
        content[at] ^= 0xFF
    database.write_bytes(bytes(content))
    assert run(["db", "check"]) == 1
    told = "".join(output())
    assert "integrity check" in told or "the file is damaged" in told


def test_an_older_schema_is_told(database: Path, output: Output) -> None:
    newest, older = two_newest()
    assert run(["db", "downgrade", older, "--yes"]) == 0
    out, err = output()
    assert out == f"the schema is at revision {older}\n"
    assert f"{newest.revision}  {newest.doc}" in err
    assert run(["db", "check"]) == 1
    assert f"the schema is at revision {older}, this version's is {newest.revision}" in output()[0]
    assert run(["db", "downgrade", older, "--yes"]) == 0
    assert output()[0] == f"the schema is at revision {older} already\n"
    assert run(["db", "upgrade"]) == 0
    assert run(["db", "check"]) == 0


def test_nothing_is_undone_while_a_service_runs(database: Path, output: Output) -> None:
    engine = open_engine(f"sqlite:///{database}")
    with open_sessions(engine).begin() as session:
        session.add(Lease(id=1, holder="head:77", token=1, expires_at=time.time() + 300))
    older = two_newest()[1]
    assert run(["db", "downgrade", older, "--yes"]) == 1
    assert "a service uses the database (head:77): stop it first" in output()[1]
    with engine.begin() as connection:
        connection.execute(text("UPDATE lease SET expires_at = 0"))
    engine.dispose()
    assert run(["db", "downgrade", older, "--yes"]) == 0


def test_a_revision_that_is_none_is_told(database: Path, output: Output) -> None:
    assert run(["db", "downgrade", "none-such", "--yes"]) == 1
    assert "cannot go back to 'none-such': expected one of 0" in output()[1]
