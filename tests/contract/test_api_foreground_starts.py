"""GET /v1/foreground/starts: jobs that waited for fragments, and the trend."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event

from api_under_test import ApiUnderTest
from cells import each
from oakum_service.control.delays import WeekOfDelays
from oakum_service.db.models.cluster import ForegroundStart


@pytest.fixture
def now(api: ApiUnderTest) -> float:
    """Twenty jobs in the last two hours, two of them at the same time, the fifth of which waited longest."""
    now = time.time()
    with api.sessions.begin() as session:
        for number in range(20):
            at = now - 7000.0 + 300.0 * (number - number % 2)
            delay_s = 50.0 if number == 5 else 0.1 * number
            session.add(ForegroundStart(job=f"{number}_1", started_at=at, num_nodes=number + 1, delay_s=delay_s))
        session.add(ForegroundStart(job="old", started_at=now - 6 * 86400.0, num_nodes=1, delay_s=3.0))
    return now


def asked(api: ApiUnderTest, **query: Any) -> Any:
    answer = api.viewer.get("/v1/foreground/starts", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_newest_come_first_in_pages_that_miss_none(api: ApiUnderTest, now: float) -> None:
    found, before = [], None
    for _ in range(7):
        page = asked(api, limit=3, **({} if before is None else {"before": before}))
        found += page["starts"]
        before = page["next"]
    assert before is None
    assert {start["job"] for start in found} == {f"{number}_1" for number in range(20)}
    assert len(found) == 20
    assert [start["started_at"] for start in found] == sorted((s["started_at"] for s in found), reverse=True)
    assert found[0].keys() == {"job", "started_at", "num_nodes", "delay_s"}


def test_the_longest_come_first_if_that_is_asked_for(api: ApiUnderTest, now: float) -> None:
    document = asked(api, order="longest", limit=2)
    assert [(start["job"], start["num_nodes"]) for start in document["starts"]] == [("5_1", 6), ("19_1", 20)]
    assert document["next"] is None
    assert asked(api, order="longest", since_s=7 * 86400.0, limit=2)["starts"][1]["job"] == "old"


def test_the_trend_has_every_start_in_one_period(api: ApiUnderTest, now: float) -> None:
    for since_s, length_s in ((8000.0, 300.0), (86400.0, 3600.0), (7 * 86400.0, 4 * 3600.0)):
        trend = asked(api, since_s=since_s, limit=1)["trend"]
        assert sum(period["starts"] for period in trend) == (21 if since_s > 6 * 86400.0 else 20)
        assert {period["to_at"] - period["from_at"] for period in trend} == {length_s}
        assert len(trend) <= 49
        assert max(period["max_s"] for period in trend) == 50.0
        worst = next(period for period in trend if period["max_s"] == 50.0)
        assert worst["from_at"] <= now - 5800.0 < worst["to_at"]
        assert worst["p50_s"] <= worst["p99_s"] <= worst["max_s"]


def test_the_trend_of_what_has_settled_is_not_read_again(api: ApiUnderTest) -> None:
    """And it is as the one that a new process reads, also after a start that was recorded late."""
    now = time.time()

    def add(job: str, age_s: float) -> None:
        with api.sessions.begin() as session:
            delay_s = age_s % 7.0
            session.add(ForegroundStart(job=job, started_at=now - age_s, num_nodes=1, delay_s=delay_s))

    def trend(since_s: float) -> tuple[Any, int]:
        rows.clear()
        answer = asked(api, since_s=since_s, limit=1)["trend"]
        return answer, sum(rows)

    def anew(since_s: float) -> Any:
        with api.sessions.begin() as session:
            length_s = 4 * 3600.0 if since_s > 2 * 86400.0 else 3600.0
            found = WeekOfDelays().periods(session, since_s, time.time(), length_s)
        return [period._asdict() for period in found]

    rows: list[int] = []
    for number in range(500):
        add(f"j{number}", 1200.0 * number)
    event.listen(api.engine, "connect", lambda connection, _: connection.set_progress_handler(ticked(rows), 100))
    api.engine_is_changed = True
    api.engine.dispose()
    _, first = trend(7 * 86400.0)
    again, second = trend(7 * 86400.0)
    assert second < first / 2
    assert again == anew(7 * 86400.0)
    add("late", 5 * 86400.0)
    for since_s in (7 * 86400.0, 86400.0, 3 * 86400.0):
        assert trend(since_s)[0] == anew(since_s)


def ticked(rows: list[int]) -> Callable[[], int]:
    def tick() -> int:
        rows.append(1)
        return 0

    return tick


def test_without_starts_there_is_nothing(api: ApiUnderTest) -> None:
    assert asked(api) == {"starts": [], "next": None, "trend": []}


@each("query", [{"order": "best"}, {"limit": 0}, {"limit": 1001}, {"since_s": 8 * 86400.0}])
def test_what_is_out_of_bounds_is_refused(api: ApiUnderTest, query: dict[str, Any]) -> None:
    assert api.viewer.get("/v1/foreground/starts", params=query).status_code == 422
