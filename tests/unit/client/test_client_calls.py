"""The client against a transport that plays the service."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from cells import each
from oakum_client.rest.address import find_address
from oakum_client.rest.client import OakumClient
from oakum_client.rest.errors import ApiError, NotConfigured, ServiceUnreachable, UnexpectedAnswer
from oakum_service.api.schemas.events import Event
from oakum_service.api.schemas.trainers import TrainerChange
from oakum_worker.spec import TrainerSpec

URL = "http://oakum.test"
SPEC = TrainerSpec(name="digits", entrypoint="tasks.digits:task", global_batch=64, epochs=2)
TRAINER = {"id": "t1", "name": "digits", "state": "waiting", "spec": SPEC.model_dump(), "submitted_at": 5.0}
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def _fast_and_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("oakum_client.rest.connection.time.sleep", lambda seconds: None)
    monkeypatch.delenv("OAKUM_URL", raising=False)
    monkeypatch.delenv("OAKUM_TOKEN", raising=False)
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))


def client_of(handler: Handler, token: str | None = "secret") -> OakumClient:
    return OakumClient(URL, token, transport=httpx.MockTransport(handler))


def problem(status: int, detail: str, errors: tuple[str, ...] = ()) -> httpx.Response:
    document = {"title": "Refused", "status": status, "detail": detail, "errors": list(errors)}
    return httpx.Response(status, json=document, headers={"Content-Type": "application/problem+json"})


def test_a_call_carries_the_token_and_returns_the_document() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json=TRAINER)

    assert client_of(handler).trainer("digits").name == "digits"
    assert str(seen[0].url) == f"{URL}/v1/trainers/digits"
    assert seen[0].headers["Authorization"] == "Bearer secret"


def test_a_reference_cannot_leave_its_place_in_the_path() -> None:
    seen: list[bytes] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(200, json=TRAINER)

    client_of(handler).trainer("../nodes?x")
    assert seen == [b"/v1/trainers/..%2Fnodes%3Fx"]


def test_each_submission_has_a_key_of_its_own_and_a_given_key_is_kept() -> None:
    keys: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        assert TrainerSpec.model_validate_json(request.content) == SPEC
        return httpx.Response(201, json=TRAINER)

    client = client_of(handler)
    client.submit(SPEC)
    client.submit(SPEC)
    client.submit(SPEC, idempotency_key="mine")
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_a_change_sends_only_what_is_changed() -> None:
    bodies: list[object] = []

    def handler(request: httpx.Request) -> httpx.Response:
        bodies.append((request.method, json.loads(request.content)))
        return httpx.Response(200, json=TRAINER)

    client_of(handler).change("digits", TrainerChange(max_nodes=4))
    assert bodies == [("PATCH", {"max_nodes": 4})]


def test_a_read_survives_two_lost_connections() -> None:
    calls = iter([httpx.ConnectError("refused"), httpx.ReadError("reset"), None])

    def handler(request: httpx.Request) -> httpx.Response:
        if error := next(calls):
            raise error
        return httpx.Response(200, json=TRAINER)

    assert client_of(handler).trainer("digits").id == "t1"


def test_a_write_is_not_repeated_behind_the_callers_back() -> None:
    calls: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        calls.append(request.method)
        raise httpx.ReadError("reset")

    with pytest.raises(ServiceUnreachable):
        client_of(handler).cancel("digits")
    assert calls == ["POST"]


def test_an_unreachable_service_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    monkeypatch.setenv("OAKUM_URL", URL)
    client = OakumClient(transport=httpx.MockTransport(handler))
    with pytest.raises(ServiceUnreachable) as caught:
        client.cluster()
    assert str(caught.value) == (
        "No service answers at http://oakum.test (from OAKUM_URL): Connection refused. Start one with "
        "`make run` or `oakum serve`, or set OAKUM_URL to where it runs."
    )


def test_a_token_with_a_character_that_no_token_has_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKUM_URL", URL)
    monkeypatch.setenv("OAKUM_TOKEN", "tökén")
    with pytest.raises(NotConfigured, match="OAKUM_TOKEN has a character that no token has"):
        OakumClient()


def test_a_problem_document_becomes_an_error_with_all_its_lines() -> None:
    client = client_of(lambda _: problem(422, "The spec cannot be accepted.", ("epochs: give 1 or more",)))
    with pytest.raises(ApiError) as caught:
        client.submit(SPEC)
    assert caught.value.status == 422
    assert str(caught.value) == "The spec cannot be accepted.\n  epochs: give 1 or more"


def test_what_the_detail_says_is_not_said_again() -> None:
    lines = ("epochs: required and not given", "name: required and not given")
    answer = problem(422, f"the spec cannot be accepted: {lines[0]}", lines)
    with pytest.raises(ApiError) as caught:
        client_of(lambda request: answer).trainer("digits")
    assert str(caught.value) == f"the spec cannot be accepted: {lines[0]}\n  {lines[1]}"


@pytest.mark.parametrize(("token", "advice"), [(None, "Set OAKUM_TOKEN to the token"), ("old", "not valid there")])
def test_a_refused_token_comes_with_advice(token: str | None, advice: str) -> None:
    with pytest.raises(ApiError, match=advice):
        client_of(lambda _: problem(401, "No such token."), token).nodes()


@each("answer", [httpx.Response(502, text="<html>"), httpx.Response(200, text="hello"), httpx.Response(302)])
def test_an_answer_of_something_else_is_told_apart(answer: httpx.Response) -> None:
    with pytest.raises(UnexpectedAnswer, match="Check that it is"):
        client_of(lambda _: answer).nodes()


def stream_of(*events: Event) -> httpx.Response:
    blocks = [f"id: {event.id}\nevent: {event.kind}\ndata: {event.model_dump_json()}\n\n" for event in events]
    return httpx.Response(200, text=": welcome\n\n" + "".join(blocks))


def test_a_broken_event_stream_is_taken_up_where_it_broke() -> None:
    first, second, third = (Event(id=i, at=0, kind="plan.made", subject="x", message="") for i in (4, 5, 6))
    answers = iter([stream_of(first, second), httpx.ConnectError("refused"), stream_of(third)])
    resumed: list[str | None] = []

    def handler(request: httpx.Request) -> httpx.Response:
        resumed.append(request.headers.get("Last-Event-ID"))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    events = client_of(handler).events()
    assert [next(events), next(events), next(events)] == [first, second, third]
    assert resumed == [None, "5", "5"]


def test_an_event_stream_that_never_began_fails_at_once() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(ServiceUnreachable):
        next(client_of(handler).events())


def test_an_address_that_is_given_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAKUM_URL", "http://other.test")
    monkeypatch.setenv("OAKUM_TOKEN", "from-env")
    assert find_address(f"{URL}/").url == URL
    assert find_address().url == "http://other.test"
    assert find_address().token == "from-env"
    assert find_address(token="given").token == "given"


def test_the_file_of_a_running_service_is_found(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text(json.dumps({"url": URL, "token": "saved"}))
    address = find_address()
    assert (address.url, address.token) == (URL, "saved")
    assert address.source == f"from {tmp_path}/client.json"


def test_a_saved_token_is_never_shown_to_another_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client.json").write_text(json.dumps({"url": URL, "token": "saved"}))
    monkeypatch.setenv("OAKUM_URL", "http://elsewhere.test")
    assert find_address().token is None
    monkeypatch.setenv("OAKUM_URL", f"{URL}/")
    assert find_address().token == "saved"


def _working_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file in a folder that one works in, without `OAKUM_DATA_DIR`."""
    monkeypatch.delenv("OAKUM_DATA_DIR")
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".oakum").mkdir(exist_ok=True)
    file = tmp_path / ".oakum" / "client.json"
    file.write_text(json.dumps({"url": URL, "token": "saved", "ca_file": "/theirs.pem"}))
    file.chmod(0o600)
    return file


def test_a_token_goes_to_no_address_that_only_the_working_folder_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _working_folder(monkeypatch, tmp_path)
    assert (find_address().url, find_address().token) == (URL, "saved")
    monkeypatch.setenv("OAKUM_TOKEN", "own")
    with pytest.raises(
        NotConfigured, match=rf"OAKUM_TOKEN is not sent to {URL}.*set OAKUM_URL={URL}.*unset OAKUM_TOKEN"
    ):
        find_address()
    with pytest.raises(NotConfigured, match="the token that is given is not sent"):
        find_address(token="given")
    # An address of the owner's choice gets the token, but nothing else of the file counts beside it.
    monkeypatch.setenv("OAKUM_URL", URL)
    assert (find_address().token, find_address().ca_file) == ("own", None)
    monkeypatch.delenv("OAKUM_URL")
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path / ".oakum"))
    assert find_address().token == "own"


@each(
    "made",
    ["another account's", "writable by others", "a named pipe", "a link", "in a folder that others may write"],
)
def test_a_file_that_a_stranger_may_have_written_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    with monkeypatch.context() as patch:
        file = _working_folder(patch, tmp_path)
        if made == "another account's":
            patch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 1)
            patch.setattr("oakum_service.files.owners.ROOT", -1)
        elif made == "writable by others":
            file.chmod(0o620)
        elif made == "a link":
            # Nobody else may write its target, as nobody may write the files in /proc, in which another account's
            # process says what it likes.
            file.rename(tmp_path / "told.json")
            file.symlink_to(tmp_path / "told.json")
        elif made == "in a folder that others may write":
            file.parent.chmod(0o770)
        else:
            file.unlink()
            os.mkfifo(file)
        with pytest.raises(NotConfigured, match=r"client\.json is not read: .*set OAKUM_URL"):
            find_address()
        patch.setenv("OAKUM_URL", URL)
        assert (find_address().token, find_address().ca_file) == (None, None)
        file.unlink()
        file.parent.chmod(0o700)


@pytest.mark.parametrize("content", ["{", "[]", '{"token": "x"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)
    with pytest.raises(NotConfigured, match=r"client\.json"):
        find_address()


def test_no_address_at_all_says_how_to_get_one() -> None:
    with pytest.raises(NotConfigured, match=r"make run.*oakum serve.*OAKUM_URL"):
        find_address()


def test_an_address_without_a_scheme_is_refused() -> None:
    with pytest.raises(NotConfigured, match="does not begin with http"):
        find_address("localhost:8642")
