"""Waiting for trainers' ends, with a service whose events the tests time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from answering_service import EVENT, Service, trainer
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.rest.client import OakumClient

load_commands()


class Stream(httpx.SyncByteStream):
    """Server-sent events: one as soon as the waiter has looked, and then silence."""

    def __init__(self, service: Telling) -> None:
        self._service = service

    def __iter__(self) -> Iterator[bytes]:
        for number, ends in enumerate(self._service.ends, start=8):
            assert self._service.looked.wait(60)
            self._service.looked.clear()
            for name, state in ends.items():
                self._service.documents["GET", f"/v1/trainers/id-{name}"] = trainer(name, state=state)
            event = EVENT | {"id": number, "kind": "trainer.finished", "subject": "x"}
            yield f"id: {number}\ndata: {json.dumps(event)}\n\n".encode()
        self._service.silent.wait(60)


class Telling(Service):
    """A service that ends trainers one event after the other, each only after the command has looked at it in
    vain."""

    first = "running"
    """The state of the first trainer when the command begins."""

    def __init__(self, ends: list[dict[str, str]]) -> None:
        super().__init__()
        self.ends = ends
        self.looked, self.silent = threading.Event(), threading.Event()
        for name in ("a", "b"):
            self.documents["GET", f"/v1/trainers/{name}"] = trainer(name)
            self.documents["GET", f"/v1/trainers/id-{name}"] = trainer(name)
        self.documents["GET", "/v1/trainers/id-a"] = trainer("a", state=self.first)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/events":
            headers = {"content-type": "text/event-stream"}
            return httpx.Response(200, headers=headers, stream=Stream(self))
        answer = super().__call__(request)
        if request.url.path == "/v1/trainers/id-b":
            self.looked.set()
        return answer


@pytest.fixture(autouse=True)
def _never_look_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the command's own polling off, so that only an event ends the waiting."""
    monkeypatch.setattr("oakum_client.trainer_ends._LOOK_AGAIN_S", 100.0)


def waited(monkeypatch: pytest.MonkeyPatch, ends: list[dict[str, str]], *arguments: str) -> int:
    service = Telling(ends)

    def connected(**options: Any) -> OakumClient:
        return OakumClient("http://oakum.test", "secret", transport=httpx.MockTransport(service), **options)

    monkeypatch.setattr("oakum_client.rest.client.OakumClient", connected)
    try:
        return run(["wait", *arguments])
    finally:
        service.silent.set()


@pytest.mark.parametrize(
    ("ends", "arguments", "code"),
    [
        ([{"a": "finished"}, {"b": "finished"}], (), 0),
        ([{"a": "finished"}, {"b": "failed"}], (), 1),
        ([{"b": "cancelled"}, {"a": "finished"}], (), 4),
        ([{"b": "cancelled", "a": "failed"}], (), 1),
        ([{"a": "finished"}], ("--any",), 0),
        ([{"b": "cancelled"}], ("--any",), 4),
        ([{"a": "finished"}], ("--timeout", "1s"), 124),
        ([], ("--any", "--timeout", "1s"), 124),
    ],
)
def test_the_exit_status_says_how_they_ended(
    monkeypatch: pytest.MonkeyPatch, ends: list[dict[str, str]], arguments: tuple[str, ...], code: int
) -> None:
    assert waited(monkeypatch, ends, "a", "b", *arguments) == code


def test_each_end_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    waited(monkeypatch, [{"b": "failed"}, {"a": "finished"}], "a", "b", "--json")
    ended: list[Any] = json.loads(capsys.readouterr().out)["trainers"]
    assert [(view["name"], view["state"]) for view in ended] == [("b", "failed"), ("a", "finished")]


def test_who_has_not_ended_in_time_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Telling, "first", "finished")
    waited(monkeypatch, [], "a", "b", "--timeout", "1s")
    assert capsys.readouterr().err == "oakum: not ended within 1s: b\n"
