"""What a request may bring along, how many may listen at once, and that a listener may leave."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import anyio
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.event import listen

from api_under_test import SPEC, ApiUnderTest, problem_of, report
from oakum_service.api import events, problems
from oakum_service.api.auth import Role
from oakum_service.api.body_limit import LARGEST_BODY_BYTES
from oakum_service.api.rate_limit import RateLimit
from oakum_service.app import _FRAGMENT_REQUESTS_PER_S
from oakum_service.identity.tokens import digest

DETAIL = "the body is larger than 1,000,000 bytes: pass the name of a file instead of its content"


def body_of(num_bytes: int) -> bytes:
    """A spec of that length."""
    bare = len(json.dumps(SPEC | {"arguments": {"x": ""}}))
    return json.dumps(SPEC | {"arguments": {"x": "y" * (num_bytes - bare)}}).encode()


def test_the_largest_body_is_read_and_one_byte_more_is_not(api: ApiUnderTest) -> None:
    headers = {"Content-Type": "application/json"}
    too_large = api.user.post("/v1/trainers", content=body_of(LARGEST_BODY_BYTES + 1), headers=headers)
    assert problem_of(too_large, 413)["detail"] == DETAIL
    read = api.user.post("/v1/trainers", content=body_of(LARGEST_BODY_BYTES), headers=headers)
    assert "characters as JSON, and may have 200,000" in problem_of(read, 400)["detail"]


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
    api.context.listeners.update(dict.fromkeys(range(events._MOST_LISTENERS), ""))
    detail = problem_of(api.viewer.get("/v1/events"), 503)["detail"]
    assert detail == "256 event streams are open, the most that are allowed: close one"
    assert api.anonymous.get("/v1/events").status_code == 401


def test_a_stream_that_has_ended_makes_room(api: ApiUnderTest) -> None:
    api.news_for_readers.close()
    for _ in range(3):
        assert api.viewer.get("/v1/events").status_code == 200
    assert api.context.listeners == {}


def test_one_token_has_not_all_the_streams(api: ApiUnderTest) -> None:
    token = api.new_token("uma", Role.USER)
    most = api.settings.quota.streams
    api.context.listeners.update(dict.fromkeys(range(most), digest(token)))
    detail = problem_of(api.client(token).get("/v1/events"), 429)["detail"]
    assert detail == "16 event streams are open with this token, the most that are allowed: close one"
    api.news_for_readers.close()
    assert api.viewer.get("/v1/events").status_code == 200


def test_a_token_that_sends_too_much_waits_and_others_do_not(api: ApiUnderTest) -> None:
    now = [100.0]
    api.app.state.rate_limit = RateLimit(5.0, clock=lambda: now[0])
    answers = [api.viewer.get("/v1/hold") for _ in range(21)]
    assert [answer.status_code for answer in answers] == [200] * 20 + [429]
    assert problem_of(answers[-1], 429)["detail"] == "this token sends more than 5 requests per second: wait 1 s"
    assert answers[-1].headers["Retry-After"] == "1"
    assert {client.get("/v1/hold").status_code for client in (api.user, api.admin)} == {200}
    now[0] += 0.2
    assert [api.viewer.get("/v1/hold").status_code for _ in range(2)] == [200, 429]


def test_a_fragments_token_that_sends_too_much_waits_and_asks_no_database(
    api: ApiUnderTest,
) -> None:
    now = [100.0]
    api.app.state.fragment_limit = RateLimit(_FRAGMENT_REQUESTS_PER_S, clock=lambda: now[0])
    fragment, other = (api.add_fragment(str(api.submit(name=name)["id"])) for name in ("flood", "calm"))
    agent, path = api.fragment_client(fragment), f"/v1/fragments/{fragment}/report"
    for _ in range(10):  # what an agent sends at most: ten reports and as many questions a second
        now[0] += 1.0
        assert {agent.post(path, json=report(1)).status_code for _ in range(10)} == {204}
        assert {agent.get(f"/v1/fragments/{fragment}/directive").status_code for _ in range(10)} == {200}
    now[0] += 10.0
    assert [agent.post(path, json=report(1)).status_code for _ in range(101)] == [204] * 100 + [429]
    statements: list[str] = []
    listen(api.engine, "before_cursor_execute", lambda _, __, statement, *___: statements.append(statement))
    api.engine_is_changed = True
    refused = [agent.post(path, json=report(1)), agent.get(f"/v1/fragments/{fragment}/directive")]
    for answer in refused:
        assert problem_of(answer, 429)["detail"] == "this token sends more than 25 requests per second: wait 1 s"
        assert answer.headers["Retry-After"] == "1"
    assert statements == []
    # Who holds no such token takes nothing of it, and others go on.
    problem_of(api.fragment_client(other).post(path, json=report(1)), 401)
    assert api.fragment_client(other).post(path.replace(fragment, other), json=report(1)).status_code == 204


def test_administrators_are_never_told_to_wait(api: ApiUnderTest) -> None:
    api.app.state.rate_limit = RateLimit(0.001)
    assert {api.admin.get("/v1/hold").status_code for _ in range(5)} == {200}
    assert [api.user.get("/v1/hold").status_code for _ in range(2)] == [200, 429]


def test_a_rate_limit_keeps_no_token_that_may_send_at_will() -> None:
    now = [0.0]
    limit = RateLimit(1.0, clock=lambda: now[0])
    for number in range(10_000):
        limit.count(str(number))
    now[0] = 60.0
    limit.count("another")
    assert [*limit._buckets] == ["another"]


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
    assert [record.message for record in caplog.records] == ["GET /stream/ (request ) failed"]


def test_no_page_that_needs_the_internet_is_served(api: ApiUnderTest) -> None:
    assert [api.admin.get(path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404, 404, 200]
