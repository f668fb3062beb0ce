"""What ended more than a week ago makes no answer take longer: each route reads as much after weeks as after
months.

What a route reads is counted, not timed: SQLite tells how many instructions its statements took, PostgreSQL how
many rows they read.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from api_under_test import ApiUnderTest, FakeScheduler
from cells import each
from long_history import TRAINERS_A_DAY, fill, paths
from oakum_service.db.models.cluster import ForegroundStart
from oakum_service.node_history.stored_hours import hours_to_store
from postgres_server import ON_POSTGRES
from trained_scene import Scene, train_on_two_nodes

_SHORT_DAYS, _LONG_DAYS = 10, 40
_INSTRUCTIONS = 100
"""Counted at once."""
_SLACK = 20
"""Such counts by which an answer may differ by chance, as pages of an index do."""
_NEWEST = {"/v1/forecast?": 500}
"""Rows that a path reads of those that have ended, however many there are."""


class CountedApi:
    """An API over some days of history, with a count of what its database does."""

    def __init__(
        self, folder: Path, days: int, url: str | None = None, trainers_a_day: int = TRAINERS_A_DAY
    ) -> None:
        """The database is at `url`, or in the folder; its schema has to be there."""
        self.api = ApiUnderTest(folder, FakeScheduler(), url)
        self.api.engine_is_changed = True
        self.scene: Scene = train_on_two_nodes(self.api)
        fill(self.api, self.scene.now, days, trainers_a_day)
        self.count = 0
        if url is None:
            event.listen(self.api.engine, "connect", self._watch)
        else:
            with self.api.engine.begin() as connection:
                connection.execute(text("ANALYZE"))
            event.listen(self.api.engine, "connect", _prefer_indexes)
            event.listen(self.api.engine, "after_cursor_execute", self._explain)
        self.api.engine.dispose()

    def _watch(self, connection: Any, _: Any) -> None:
        connection.set_progress_handler(self._tick, _INSTRUCTIONS)

    def _tick(self) -> int:
        self.count += 1
        return 0

    def _explain(self, connection: Any, _: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.startswith("SELECT") and " FROM " in statement.replace("\n", " "):
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {statement}", parameters)
                self.count += _rows_read(cursor.fetchone()[0][0]["Plan"])

    def cost(self, path: str) -> int:
        """What a repeated question for the path takes; the first one may read what is remembered from then on."""
        for _ in range(2):
            self.count = 0
            response = self.api.admin.get(path)
            assert response.status_code in (200, 404, 503), (path, response.text)
        return self.count


def _prefer_indexes(connection: Any, _: Any) -> None:
    """Of the tables of these tests, which are small, PostgreSQL would read all where it has an index, also to join
    them."""
    with connection.cursor() as cursor:
        for way in ("seqscan", "hashjoin", "mergejoin"):
            cursor.execute(f"SET enable_{way} = off")
    connection.commit()


def _rows_read(plan: dict[str, Any]) -> int:
    """Rows that a plan's scans have read, those that were filtered out included."""
    read = 0
    # A bitmap's index scan finds the rows that the scan above it reads. PostgreSQL may take either way.
    if "Scan" in plan["Node Type"] and plan["Node Type"] != "Bitmap Index Scan":
        removed = sum(rows for name, rows in plan.items() if name.startswith("Rows Removed by"))
        read = int((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    return read + sum(_rows_read(below) for below in plan.get("Plans", ()))


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=ON_POSTGRES)])
def short_and_long(
    request: pytest.FixtureRequest, empty_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[CountedApi, CountedApi]]:
    made = []
    for days in (_SHORT_DAYS, _LONG_DAYS):
        folder = tmp_path_factory.mktemp("history")
        url: str | None = None
        if request.param == "sqlite":
            shutil.copy(empty_database, folder / "oakum.db")
        else:
            url = request.getfixturevalue("postgres").new_database_with_schema()
        made.append(CountedApi(folder, days, url))
    yield made[0], made[1]
    for one in made:
        one.api.close()


def test_no_answer_takes_longer_for_what_has_ended_long_ago(
    short_and_long: tuple[CountedApi, CountedApi],
) -> None:
    short, long = short_and_long
    grown = {}
    for path in paths(short.api, short.scene.now):
        before, after = short.cost(path), long.cost(path)
        if after > before * 1.3 + _SLACK + _NEWEST.get(path, 0):
            grown[path] = f"{before} -> {after}"
    assert not grown


@each("path", ["/v1/quotas", "/v1/timeline/occupancy?from_at={from_at}&to_at={now}"])
def test_a_first_answer_of_a_dense_week_reads_the_last_hours_and_sums(
    path: str, empty_database: Path, tmp_path: Path
) -> None:
    """A hundred thousand stretches and fragments have ended in it; to read one takes ten instructions and more."""
    folder = tmp_path / path[4:9]
    folder.mkdir()
    shutil.copy(empty_database, folder / "oakum.db")
    dense = CountedApi(folder, 7, trainers_a_day=1440)
    now = dense.scene.now
    with dense.api.sessions.begin() as session:
        while rows := hours_to_store(session, ["n1", "n2", "n3"], now - 7 * 86400, now):
            session.add_all(rows)
            session.flush()
    dense.count = 0
    answer = dense.api.admin.get(path.format(from_at=now - 7 * 86400 + 3600, now=now))
    dense.api.close()
    assert answer.status_code == 200, answer.text
    assert dense.count * _INSTRUCTIONS < 200_000


def test_a_long_page_of_ended_trainers_is_cut_and_goes_on(short_and_long: tuple[CountedApi, CountedApi]) -> None:
    _, long = short_and_long
    before, seen = "", 0
    began_s = time.monotonic()
    while time.monotonic() - began_s < 60:
        answer = long.api.admin.get(f"/v1/trainers?state=finished&limit=5000{before}").json()
        assert len(answer["trainers"]) <= 500
        seen += len(answer["trainers"])
        if answer["next"] is None:
            break
        before = f"&before={answer['next']}"
    assert seen == 144 * _LONG_DAYS + 1


def test_a_start_that_is_recorded_hours_later_counts(api: ApiUnderTest) -> None:
    """As a service records it that was away: the answers before have settled what is older than an hour."""

    def record(job: str, age_s: float, delay_s: float) -> dict[str, Any]:
        with api.sessions.begin() as session:
            started_at = time.time() - age_s
            session.add(ForegroundStart(job=job, started_at=started_at, num_nodes=1, delay_s=delay_s))
        shown: dict[str, Any] = api.viewer.get("/v1/cluster").json()
        return shown

    record("old", 9000.0, 1.0)
    shown = record("older, recorded later", 10_000.0, 7.0)
    assert (shown["foreground_jobs_started"], shown["foreground_delay_max_s"]) == (2, 7.0)
    assert shown["foreground_delay_last_s"] == 1.0
