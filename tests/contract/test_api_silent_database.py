"""A database that takes connections and does not answer keeps nobody waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from api_under_test import ApiUnderTest, problem_of
from oakum_service.db import stalls
from oakum_service.db.engine import reading, upgrade
from oakum_service.errors import ConfigurationError
from postgres_server import ON_POSTGRES, PostgresServer
from waiting import wait_until

pytestmark = [*ON_POSTGRES]


@contextmanager
def stopped(server: PostgresServer) -> Iterator[None]:
    """A server whose sockets are open while none of its processes runs."""
    processes = {*server.processes()}
    processes |= {child for process in processes for child in process.children(recursive=True)}
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_an_upgrade_waits_for_no_lock_and_no_silent_server_for_ever(
    api: ApiUnderTest, postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oakum_service.db.engine._LOCKS_S", 0.2)
    with api.sessions.begin() as session:
        session.execute(text("SELECT 1"))  # in its turn, for which the upgrade waits
        with pytest.raises(ConfigurationError, match=r"another transaction has kept .* for 0\.2 s"):
            upgrade(api.engine)
    monkeypatch.setattr(stalls, "_SILENT_S", 0.5)
    sleeping = "FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(600)' AND state = 'active'"

    def work() -> None:
        with suppress(DBAPIError), api.engine.connect() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(600)")

    def number_of(what: str) -> int:
        with reading(api.engine).connect() as connection:
            return int(connection.exec_driver_sql(f"SELECT count({what}) {sleeping}").scalar_one())

    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(stalls.while_it_gets_on, api.engine, "its work", work)
        wait_until("it is at work", lambda: number_of("*") == 1)
        with (
            stopped(postgres),
            pytest.raises(ConfigurationError, match=r"its work has waited 0\.5 s for the server"),
        ):
            waiting.result(timeout=60)
    wait_until("the server answers again", lambda: number_of("pg_terminate_backend(pid)") >= 0)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
def test_a_silent_database_is_told_of_and_requests_end(
    api: ApiUnderTest, postgres: PostgresServer, database: str
) -> None:
    api.submit()
    calls = [api.viewer.get, api.user.get, api.admin.get] * 3
    with stopped(postgres), ThreadPoolExecutor() as threads:
        waiting = [threads.submit(call, "/v1/trainers") for call in calls]
        waiting.append(threads.submit(api.user.post, "/v1/trainers/digits/cancel"))
        began_s = time.monotonic()
        answer = api.anonymous.get("/readyz")
        assert time.monotonic() - began_s < 5
        assert answer.status_code == 503
        faults = {check["name"]: check["detail"] for check in answer.json()["checks"]}
        assert faults["database"].startswith("the database ")
        for each in waiting:
            problem_of(each.result(timeout=60), 503)
    wait_until("the database answers again", lambda: api.viewer.get("/v1/trainers").status_code == 200)
