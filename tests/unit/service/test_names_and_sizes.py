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


def test_scale_sends_a_priority(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "digits", "--priority", "-5"]) == 0
    assert service.bodies == [{"priority": -5}]
    assert "priority 0" in capsys.readouterr().out
    assert run(["scale", "digits", "--priority", "101"]) == 2


def test_show_says_where_the_checkpoints_are(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    where = "/shared/oakum/checkpoints/id-digits"
    service.documents["GET", "/v1/trainers/digits"] = trainer(checkpoint_step=70, checkpoint_folder=where)
    assert run(["show", "digits"]) == 0
    assert f"step 70, found on the disk, in {where}\n" in capsys.readouterr().out


def test_all_that_ps_knows_stands_on_one_line(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    now = time.time()
    waiting = trainer(
        "w", state="waiting", nodes=[], submitted_at=now - 7200, status_since=now - 300, reason="x " * 99
    )
    failed = trainer("f", state="failed", nodes=[], ended_at=now - 60, reason="It has failed:\nno module 'a'")
    service.documents["GET", "/v1/trainers"] = {"trainers": [waiting, failed]}
    assert run(["ps", "--all", "-o", "name,state,nodes,of,for,age,why"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["NAME", "STATE", "NODES", "OF", "FOR", "AGE", "WHY"]
    assert rows[0].split(maxsplit=8) == ["w", "waiting", "0", "1-8", "5", "min", "2", "h", ("x " * 99).strip()]
    assert rows[1].endswith("It has failed: no module 'a'")


@pytest.mark.parametrize(("state", "told"), [("running", "none yet"), ("failed", "none")])
def test_only_a_live_trainer_is_told_to_have_no_checkpoint_yet(
    service: Service, capsys: pytest.CaptureFixture[str], state: str, told: str
) -> None:
    service.documents["GET", "/v1/trainers/digits"] = trainer(state=state, started_at=time.time())
    assert run(["show", "digits"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("Checkpoint")] == [told]


def test_ps_says_first_of_a_held_trainer_that_it_is_held(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    held = trainer(
        "h", state="waiting", status="held", nodes=[], condition="Attempt 2 of 5.", reason="Held by ops."
    )
    service.documents["GET", "/v1/trainers"] = {"trainers": [held]}
    assert run(["ps", "-o", "wide"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("Held by ops.  Attempt 2 of 5.")


def test_ps_gives_no_time_to_a_trainer_between_two_states(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    between = trainer(
        "b", state="waiting", nodes=[], submitted_at=time.time() - 7200, waiting_since=None, reason="No."
    )
    service.documents["GET", "/v1/trainers"] = {"trainers": [between]}
    assert run(["ps", "-o", "for,age,why"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == ["-", "2", "h", "No."]
