"""Completion of trainers' names: from the service, quick, and silent where there is none."""

from __future__ import annotations

import time

import httpx
import pytest

from answering_service import Service, trainer
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.completion import complete_trainer
from oakum_client.rest.client import OakumClient

load_commands()


def test_names_that_begin_so_come_with_the_newest_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering = Service()
    answering.documents["GET", "/v1/trainers"] = {
        "trainers": [trainer("digits", state="failed"), trainer("other"), trainer("digits")]
    }
    transport = httpx.MockTransport(answering)

    def connected(timeout_s: float) -> OakumClient:
        return OakumClient("http://oakum.test", "secret", transport=transport, timeout_s=timeout_s)

    monkeypatch.setattr("oakum_client.rest.client.OakumClient", connected)
    assert complete_trainer("di") == [("digits", "running")]
    assert complete_trainer("") == [("digits", "running"), ("other", "running")]


def test_without_a_service_it_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    monkeypatch.setenv("OAKUM_URL", "http://127.0.0.1:9")
    began_s = time.monotonic()
    assert complete_trainer("d") == []
    assert time.monotonic() - began_s < 60.0
    monkeypatch.delenv("OAKUM_URL")
    monkeypatch.setenv("OAKUM_DATA_DIR", str(tmp_path))
    assert complete_trainer("d") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("words", ["oakum show d", "oakum cancel d", "oakum wait a d"])
def test_the_shell_is_given_the_names(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: str
) -> None:
    monkeypatch.setattr("oakum_client.cli.output.complete_trainer", lambda incomplete: [("digits", "running")])
    answering = Service()
    transport = httpx.MockTransport(answering)

    def connected(timeout_s: float) -> OakumClient:
        return OakumClient("http://oakum.test", "secret", transport=transport, timeout_s=timeout_s)

    monkeypatch.setattr("oakum_client.rest.client.OakumClient", connected)
    monkeypatch.setenv("_OAKUM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run([]) == 0
    assert capfd.readouterr().out.split() == ["digits"]
