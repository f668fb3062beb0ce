"""The event stream over a real connection: nothing is missed, nothing comes twice, it ends with the service."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.api import event_feed, shared_reading
from oakum_service.api import events as stream
from oakum_service.api.auth import Role
from oakum_service.api.event_feed import EventFeed
from oakum_service.db import event_log


@pytest.fixture
def url(api: ApiUnderTest) -> Iterator[str]:
    """Address of the app behind a real HTTP server."""
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(api.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    api.news_for_readers.close()
    server.should_exit = True
    thread.join(20.0)
    assert not thread.is_alive()
    listening.close()


def record(api: ApiUnderTest, *subjects: str) -> None:
    """Record events as the controller does: write them, then wake the readers."""
    with api.sessions.begin() as session:
        for subject in subjects:
            event_log.record(session, "node.hole", subject, f"{subject} is idle", node=subject)
    api.news_for_readers.notify()


@contextmanager
def listening(
    api: ApiUnderTest, url: str, after: int | None = None, last_event_id: int | None = None
) -> Iterator[Iterator[dict[str, str]]]:
    """The stream's events as the fields that came over the wire; waits no more than 10 s for the next."""
    headers = {"Authorization": api.viewer.headers["Authorization"], "Accept": "text/event-stream"}
    if last_event_id is not None:
        headers["Last-Event-ID"] = str(last_event_id)
    params = {} if after is None else {"after": after}
    with httpx.stream("GET", f"{url}/v1/events", headers=headers, params=params, timeout=10.0) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        yield _parse(response.iter_lines())


def _parse(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event.keys() - {""}:
            yield event
            event = {}


def ids(events: Iterator[dict[str, str]], count: int) -> list[int]:
    return [int(next(events)["id"]) for _ in range(count)]


def test_an_event_carries_its_id_its_kind_and_its_document(api: ApiUnderTest, url: str) -> None:
    record(api, "n1")
    with listening(api, url, after=0) as events:
        event = next(events)
    assert (event["id"], event["event"]) == ("1", "node.hole")
    document: dict[str, Any] = json.loads(event["data"])
    assert document == api.viewer.get("/v1/events/recent").json()["events"][0]
    assert (document["id"], document["subject"], document["data"]) == (1, "n1", {"node": "n1"})


def test_an_event_comes_as_it_happens(api: ApiUnderTest, url: str) -> None:
    """The event arrives long before the stream would read the database again by itself."""
    record(api, "n1")
    with listening(api, url, after=0) as events:
        assert ids(events, 1) == [1]
        for number in (2, 3, 4):
            assert api.news_for_readers.waited.wait(10.0)
            api.news_for_readers.waited.clear()
            record(api, "n2")
            assert ids(events, 1) == [number]


def test_an_event_between_the_look_and_the_wait_is_not_missed(
    api: ApiUnderTest, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = api.app.state.event_feed._reading
    look, waiting = reading._read, iter(["n1", "n2", "n3"])

    def look_and_see_it_happen() -> None:
        look()
        if node := next(waiting, None):
            record(api, node)

    monkeypatch.setattr(reading, "_read", look_and_see_it_happen)
    with listening(api, url, after=0) as events:
        assert ids(events, 3) == [1, 2, 3]


def test_a_stream_goes_on_after_the_last_event_that_was_seen(api: ApiUnderTest, url: str) -> None:
    record(api, *(f"n{number}" for number in range(1, 7)))
    with listening(api, url, last_event_id=2) as events:
        assert ids(events, 4) == [3, 4, 5, 6]
    with listening(api, url, after=4) as events:
        assert ids(events, 2) == [5, 6]


def test_the_last_event_seen_counts_more_than_where_the_stream_first_began(api: ApiUnderTest, url: str) -> None:
    """A browser that connects again sends the header with the address it first used."""
    record(api, *(f"n{number}" for number in range(1, 7)))
    with listening(api, url, after=0, last_event_id=5) as events:
        assert ids(events, 1) == [6]


def test_more_events_than_one_read_takes_come_in_order_and_once(api: ApiUnderTest, url: str) -> None:
    record(api, *(f"n{number}" for number in range(450)))
    with listening(api, url, after=0) as events:
        assert ids(events, 450) == list(range(1, 451))


def test_without_a_place_to_begin_only_what_is_new_is_told(api: ApiUnderTest, url: str) -> None:
    record(api, "n1", "n2")
    with listening(api, url) as events:
        assert api.news_for_readers.waited.wait(10.0)
        record(api, "n3")
        assert ids(events, 1) == [3]


def test_every_listener_hears_every_event(api: ApiUnderTest, url: str) -> None:
    with listening(api, url, after=0) as first, listening(api, url, after=0) as second:
        record(api, "n1", "n2")
        assert ids(first, 2) == ids(second, 2) == [1, 2]


def test_a_change_is_read_once_for_all_listeners(
    api: ApiUnderTest, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_reading, "_FRESH_S", 60.0)
    with ExitStack() as streams:
        listeners = [streams.enter_context(listening(api, url, after=0)) for _ in range(5)]
        record(api, "n1")
        assert [ids(events, 1) for events in listeners] == [[1]] * 5
        reading = api.app.state.event_feed._reading
        read, versions = reading._read, list[int]()

        def count_and_read() -> None:
            versions.append(api.news_for_readers.version)
            read()

        monkeypatch.setattr(reading, "_read", count_and_read)
        record(api, "n2")
        assert [ids(events, 1) for events in listeners] == [[2]] * 5
    assert versions == [api.news_for_readers.version]


def test_what_happened_before_the_newest_kept_events_comes_from_the_database(
    api: ApiUnderTest, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_KEPT", 10)
    api.app.state.event_feed = EventFeed(api.context.readers, api.news_for_readers)
    record(api, *(f"n{number}" for number in range(30)))
    with listening(api, url, after=0) as events:
        assert ids(events, 30) == list(range(1, 31))


def test_a_listener_that_leaves_is_no_error_and_makes_room(
    api: ApiUnderTest, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    record(api, *(f"n{number}" for number in range(450)))
    for _ in range(5):
        with listening(api, url, after=0) as events:
            assert ids(events, 1) == [1]
    deadline_s = time.monotonic() + 10.0
    while api.context.listeners and time.monotonic() < deadline_s:
        api.news_for_readers.notify()
        time.sleep(0.05)
    assert api.context.listeners == {}
    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []


def test_the_stream_ends_when_the_service_stops(api: ApiUnderTest, url: str) -> None:
    record(api, "n1")
    with listening(api, url, after=0) as events:
        assert ids(events, 1) == [1]
        assert api.news_for_readers.waited.wait(10.0)
        api.news_for_readers.close()
        assert list(events) == []


@each("value", ["x", "-1", str(2**63), "9" * 5000])
def test_a_place_that_cannot_be_one_is_refused(api: ApiUnderTest, value: str) -> None:
    (line,) = problem_of(api.viewer.get("/v1/events", headers={"Last-Event-ID": value}), 422)["errors"]
    assert line.startswith("header.Last-Event-ID: ")
    (line,) = problem_of(api.viewer.get("/v1/events", params={"after": value}), 422)["errors"]
    assert line.startswith("query.after: ")


def test_a_stream_ends_once_its_token_was_revoked(
    api: ApiUnderTest, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_CHECK_S", 0.0)
    token = api.new_token("leaver", Role.VIEWER)
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.stream("GET", f"{url}/v1/events?after=0", headers=headers, timeout=240.0) as answer:
        lines = answer.iter_lines()
        record(api, "n1")
        assert any("n1 is idle" in line for line in lines)
        [mine] = [row for row in api.admin.get("/v1/tokens").json()["tokens"] if row["name"] == "leaver"]
        assert api.admin.delete(f"/v1/tokens/{mine['id']}").status_code == 204
        record(api, "n2")
        assert not any("n2 is idle" in line for line in lines)
