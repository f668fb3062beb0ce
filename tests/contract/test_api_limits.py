"""What a request may bring along, how many may listen at once, and that a listener may leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import anyio
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from contract.api_under_test import SPEC, ApiUnderTest, problem_of
from oakum_service.api import events, problems
from oakum_service.api.body_limit import LARGEST_BODY_BYTES

DETAIL = "the body is larger than 1,000,000 bytes: pass the name of a file instead of its content"


def body_of(num_bytes: int) -> bytes:
    """A spec of that length."""
    bare = len(json.dumps(SPEC | {"arguments": {"x": ""}}))
    return json.dumps(SPEC | {"arguments": {"x": "y" * (num_bytes - bare)}}).encode()


def test_the_largest_body_is_taken_and_one_byte_more_is_not(api: ApiUnderTest) -> None:
    headers = {"Content-Type": "application/json"}
    too_large = api.user.post("/v1/trainers", content=body_of(LARGEST_BODY_BYTES + 1), headers=headers)
    assert problem_of(too_large, 413)["detail"] == DETAIL
    taken = api.user.post("/v1/trainers", content=body_of(LARGEST_BODY_BYTES), headers=headers)
    assert taken.status_code == 201


def test_a_body_of_untold_length_is_cut_off_before_anyone_knows_whose_it_is(api: ApiUnderTest) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 100_000
            yield b"[" * 100_000

    headers = {"Content-Type": "application/json"}
    response = api.anonymous.post("/v1/trainers", content=chunks(), headers=headers)
    assert problem_of(response, 413)["detail"] == DETAIL


@pytest.mark.parametrize("told", ["9" * 5000, str(LARGEST_BODY_BYTES + 1)])
def test_a_length_that_is_only_claimed_is_enough_to_refuse(api: ApiUnderTest, told: str) -> None:
    response = api.anonymous.post("/v1/trainers", content=b"", headers={"Content-Length": told})
    problem_of(response, 413)


def test_one_stream_more_than_there_may_be_is_refused(api: ApiUnderTest) -> None:
    api.context.listeners.update(range(events._MOST_LISTENERS))
    detail = problem_of(api.viewer.get("/v1/events"), 503)["detail"]
    assert detail == "64 event streams are open, as many as there may be: close one"
    assert api.anonymous.get("/v1/events").status_code == 401


def test_a_stream_that_has_ended_makes_room(api: ApiUnderTest) -> None:
    api.outbox.close()
    for _ in range(3):
        assert api.viewer.get("/v1/events").status_code == 200
    assert api.context.listeners == set()


@pytest.mark.parametrize("error", [anyio.BrokenResourceError(), anyio.ClosedResourceError()])
def test_a_client_that_leaves_is_no_error(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async def stream(scope, receive, send):  # type: ignore[no-untyped-def]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})
        raise ExceptionGroup("tasks of the stream", [error])

    app = FastAPI()
    problems.install(app)
    app.mount("/stream", stream)
    with caplog.at_level(logging.WARNING):
        assert TestClient(app).get("/stream").status_code == 200
    assert caplog.records == []


def test_an_error_of_our_own_is_logged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def stream(scope, receive, send):  # type: ignore[no-untyped-def]
        raise ExceptionGroup("tasks of the stream", [anyio.BrokenResourceError(), KeyError("ours")])

    app = FastAPI()
    problems.install(app)
    app.mount("/stream", stream)
    problem_of(TestClient(app, raise_server_exceptions=False).get("/stream"), 500)
    assert [record.message for record in caplog.records] == ["GET /stream/ failed"]


def test_no_page_that_needs_the_internet_is_served(api: ApiUnderTest) -> None:
    assert [api.admin.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
