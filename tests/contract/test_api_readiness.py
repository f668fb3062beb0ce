"""/readyz: whether the service can do its work, and what keeps it from it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import text

from api_under_test import ApiUnderTest, FakeScheduler
from controlled import controlled
from waiting import wait_until


class SilentScheduler(FakeScheduler):
    """A scheduler whose state was last read at `read_at`."""

    read_at: float | None = None

    def taken_at(self) -> float | None:
        return self.read_at


def readiness(api: ApiUnderTest) -> tuple[int, dict[str, str | None]]:
    """The status of the answer, and what it says is wrong with each part."""
    answer = api.anonymous.get("/readyz")
    document: dict[str, Any] = answer.json()
    assert document["ready"] == (answer.status_code == 200)
    assert all(check["ok"] == (check["detail"] is None) for check in document["checks"])
    return answer.status_code, {check["name"]: check["detail"] for check in document["checks"]}


READY = (200, {"database": None, "schema": None, "controller": None, "scheduler": None})


def test_a_service_whose_controller_takes_turns_is_ready(api: ApiUnderTest) -> None:
    status, before = readiness(api)
    assert status == 503
    assert "the controller has finished no turn yet" in str(before.pop("controller"))
    assert set(before.values()) == {None}
    with controlled(api):
        wait_until("the service is ready", lambda: readiness(api) == READY)


def test_a_late_turn_is_named(api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [time.monotonic()]
    monkeypatch.setattr(api.context.turns, "_clock_s", lambda: now_s[0])
    api.context.turns.note_turn()
    assert readiness(api) == READY
    now_s[0] += 100
    status, faults = readiness(api)
    assert status == 503
    limit_s = 10.0 + api.settings.poll_s
    told = f"the controller's last turn ended 100 s ago, expected {limit_s:.0f} s at most: see the log"
    assert faults["controller"] == told
    assert faults["database"] is faults["schema"] is faults["scheduler"] is None


def test_a_process_that_is_no_longer_the_controller_is_not_ready(api: ApiUnderTest) -> None:
    api.context.turns.note_turn()
    api.context.turns.forget()
    assert readiness(api)[0] == 503


def test_a_schema_of_another_version_is_named(api: ApiUnderTest) -> None:
    api.context.turns.note_turn()
    with api.sessions.begin() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0007'"))
    status, faults = readiness(api)
    assert status == 503
    assert str(faults["schema"]).startswith("the schema is at revision 0007, expected 00")


def test_a_database_that_does_not_answer_is_named_without_its_address(api: ApiUnderTest) -> None:
    api.context.turns.note_turn()
    api.engine.dispose()
    file = api.settings.data_dir / "oakum.db"
    for leftover in (file.with_name("oakum.db-wal"), file.with_name("oakum.db-shm")):
        leftover.unlink(missing_ok=True)
    file.write_bytes(b"not a database, " * 100)
    status, faults = readiness(api)
    assert status == 503
    assert faults["database"] == "the database does not answer: the service's log says why"
    assert faults["schema"] == "not known, since the database does not answer"


def test_a_database_that_cannot_be_written_is_named(api: ApiUnderTest) -> None:
    api.context.turns.note_turn()
    api.context.writability.fault = "the disk is full"
    assert readiness(api) == (503, READY[1] | {"database": "the disk is full"})


class TestScheduler:
    @pytest.fixture
    def scheduler(self) -> SilentScheduler:
        return SilentScheduler()

    @pytest.mark.parametrize(
        ("age_s", "told"),
        [
            (None, "fake has not answered yet"),
            (60.0, "fake has not answered for too long"),
        ],
    )
    def test_one_that_does_not_answer_is_named(
        self, api: ApiUnderTest, scheduler: SilentScheduler, age_s: float | None, told: str
    ) -> None:
        api.context.turns.note_turn()
        scheduler.read_at = None if age_s is None else time.time() - age_s
        status, faults = readiness(api)
        assert status == 503
        assert str(faults["scheduler"]).startswith(told)
