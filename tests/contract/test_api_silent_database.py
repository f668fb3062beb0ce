"""A database that takes connections and does not answer keeps nobody waiting for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from api_under_test import ApiUnderTest, problem_of
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
