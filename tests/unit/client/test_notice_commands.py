"""`oakum notices`: what has been sent, and a test of a recipient."""

from __future__ import annotations

import time

import pytest

from answering_service import Output, Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()


def test_notices_are_listed_with_their_outcome(service: Service, output: Output) -> None:
    common = {"id": "1", "event": "failed", "trainer": "digits", "created_at": time.time(), "sent_at": None}
    common |= {"recipient": "https://hooks.example.org/...", "next_at": None, "error": ""}
    service.documents["GET", "/v1/notices"] = {
        "notices": [
            {**common, "attempts": 3, "error": "hooks.example.org answers 503"},
            {**common, "attempts": 1, "sent_at": time.time()},
            {**common, "attempts": 1, "next_at": time.time() + 5, "error": "hooks.example.org answers 500"},
        ]
    }
    assert run(["notices", "list", "digits"]) == 0
    assert service.requests == [("GET", "/v1/notices?trainer=digits")]
    _, *lines = output().splitlines()
    assert [line.split(maxsplit=5)[5].split(" ")[0] for line in lines] == ["given", "sent", "1"]
    assert "given up after 3 tries: hooks.example.org answers 503" in lines[0]


def test_a_notice_that_was_not_taken_fails_the_test(
    service: Service, output: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = {"sent": True, "recipient": "https://hooks.example.org/...", "error": ""}
    service.documents["POST", "/v1/notices/test"] = [tested, {**tested, "sent": False, "error": "it answers 503"}]
    arguments = ["notices", "test", "--webhook", "https://hooks.example.org/x"]
    assert run(arguments) == 0
    assert output() == "Sent: https://hooks.example.org/... has taken it.\n"
    assert run(arguments) == 1
    assert capsys.readouterr().err == "oakum: not sent to https://hooks.example.org/...: it answers 503\n"
    assert run(["notices", "test"]) == 2
