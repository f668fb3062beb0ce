"""`oakum token` on the service's machine: its database, without a service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_service.db.engine import open_engine, open_readers, open_sessions, upgrade
from oakum_service.db.models.callers import ApiToken
from oakum_service.identity import audit, tokens

load_commands()

Output = Callable[[], tuple[str, str]]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The database that the commands use."""
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    engine = open_engine(f"sqlite:///{tmp_path / 'oakum.db'}")
    upgrade(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: (told := capsys.readouterr()) and (told.out, told.err)


def listed(output: Output) -> list[dict[str, Any]]:
    output()
    assert run(["token", "list", "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(output()[0])["tokens"]
    return found


@pytest.mark.usefixtures("engine")
def test_a_token_has_a_label_and_an_end(output: Output) -> None:
    assert run(["token", "create", "ci", "--label", "nightly", "--expires", "90d", "--json"]) == 0
    token = json.loads(output()[0])["token"]
    [row] = listed(output)
    assert (row["name"], row["role"], row["label"], row["used_at"]) == ("ci", "user", "nightly", None)
    assert row["expires_at"] - row["created_at"] == pytest.approx(90 * 86400)
    assert row["id"] == tokens.digest(token)[:12]
    assert run(["token", "list"]) == 0
    shown = output()[0]
    assert "nightly" in shown
    assert "never" in shown
    assert token not in shown


def test_a_token_is_replaced_and_the_old_one_stays_valid_for_a_while(engine: Engine, output: Output) -> None:
    assert run(["token", "create", "ci", "--expires", "30d"]) == 0
    old = output()[0].strip()
    assert run(["token", "rotate", "ci", "--overlap", "10m"]) == 0
    new = output()[0].strip()
    by_id = {row["id"]: row for row in listed(output)}
    before, after = by_id[tokens.digest(old)[:12]], by_id[tokens.digest(new)[:12]]
    assert before["expires_at"] - after["created_at"] == pytest.approx(600, abs=1)
    assert after["expires_at"] - after["created_at"] == pytest.approx(30 * 86400)
    with open_readers(engine).begin() as session:
        rows = tokens.listed(session, "ci")
        assert [tokens.is_valid(row, after["created_at"] + 601) for row in rows] == [False, True]


@pytest.mark.usefixtures("engine")
def test_which_token_is_meant_has_to_be_clear(output: Output) -> None:
    for label in ("laptop", "cluster"):
        assert run(["token", "create", "alice", "--label", label]) == 0
    output()
    assert run(["token", "rotate", "alice"]) == 1
    assert "there are 2: give --label" in output()[1]
    assert run(["token", "rotate", "alice", "--label", "phone"]) == 1
    assert "no token named 'alice' with the label 'phone'" in output()[1]
    assert run(["token", "revoke", "alice", "--label", "laptop"]) == 0
    assert output()[0] == "revoked 1 token of alice\n"
    assert [row["label"] for row in listed(output)] == ["cluster"]


def test_sessions_of_the_dashboard_end_with_their_token_and_are_not_replaced(
    engine: Engine, output: Output
) -> None:
    with open_sessions(engine).begin() as session:
        for label in ("laptop", "cluster"):
            token = tokens.create(session, audit.local_actor(), "ada", "user", label)
            session.flush()
            tokens.begin_session(session, session.get_one(ApiToken, tokens.digest(token)), time.time(), 3600.0)
    assert run(["token", "rotate", "ada", "--label", "laptop", "--overlap", "0"]) == 0
    assert run(["token", "revoke", "ada", "--label", "cluster"]) == 0
    output()
    labels = [row["label"] for row in listed(output)]
    assert sorted(labels)[:2] == ["laptop", "laptop"]
    assert sum(label.startswith("session of ") for label in labels) == 1
    assert run(["token", "revoke", "ada"]) == 0
    output()
    assert listed(output) == []


def test_an_expired_token_cannot_be_replaced(engine: Engine, output: Output) -> None:
    with open_sessions(engine).begin() as session:
        tokens.create(session, audit.local_actor(), "bob", "user", lifetime_s=-1.0)
    assert run(["token", "rotate", "bob"]) == 1
    assert "there is none that is valid" in output()[1]


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--expires", "0"], "longer than nothing"),
        (["--expires", "soon"], "is not a duration"),
        (["--label", "two\nlines"], "cannot be a token's label"),
    ],
)
def test_a_token_that_cannot_be_is_not_made(arguments: list[str], told: str, output: Output) -> None:
    assert run(["token", "create", "alice", *arguments]) != 0
    assert told in "".join(output())
    assert listed(output) == []


@pytest.mark.parametrize("name", ["", "  ", "a" * 64, "two\nlines"])
def test_a_token_needs_a_name_that_can_be_listed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    assert run(["token", "create", name]) == 1
    assert capsys.readouterr() == (
        "",
        f"oakum: {name!r} cannot be a token's name: give 1 to 63 printable characters\n",
    )
    assert list(tmp_path.iterdir()) == []
