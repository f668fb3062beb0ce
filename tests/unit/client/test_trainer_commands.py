"""What is done to a trainer: `oakum explain`, `scale`, `pause`, `unpause`, `retry` and `cancel`."""

from __future__ import annotations

import io

import pytest

from answering_service import Output, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()


def test_explain_says_size_plan_and_reason(service: Service, output: Output) -> None:
    assert run(["explain", "digits"]) == 0
    assert output() == "digits is running (plan 42).\nTrains on 2 nodes, 1 more to join: no other node is idle.\n"


def test_scale_sends_what_was_given(service: Service, output: Output) -> None:
    assert run(["scale", "digits", "--max-nodes", "8", "--weight", "2"]) == 0
    assert service.bodies == [{"max_nodes": 8, "weight": 2.0}]
    assert "1 to 8 nodes" in output()


@each(("given", "sent"), [("1,2,4", [1, 2, 4]), ("powers_of_two", "powers_of_two"), ("any", "any")])
def test_scale_sends_the_sizes_that_were_given(service: Service, given: str, sent: object) -> None:
    assert run(["scale", "digits", "--sizes", given]) == 0
    assert service.bodies[-1] == {"sizes": sent}


def test_annotate_sends_what_was_given(service: Service, output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = trainer()["spec"] | {"tags": ["a", "b"], "notes": "two\nlines"}
    service.documents["PATCH", "/v1/trainers/digits"] = trainer(spec=spec)
    assert run(["annotate", "digits", "--tag", "a", "-t", "b", "--untag", "c"]) == 0
    assert output() == "digits has the tags a, b and notes.\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    assert run(["annotate", "digits", "--notes", "-"]) == 0
    service.documents["PATCH", "/v1/trainers/digits"] = trainer()
    output()
    assert run(["annotate", "digits", "--notes", ""]) == 0
    assert output() == "digits has no tag and no notes.\n"
    expected = [{"add_tags": ["a", "b"], "remove_tags": ["c"]}, {"notes": "two\nlines"}, {"notes": ""}]
    assert service.sent("PATCH", "/v1/trainers/digits") == expected
    service.documents["GET", "/v1/trainers/digits"] = trainer(spec=spec)
    assert run(["show", "digits"]) == 0
    assert {"Tags a, b", "Notes two"} <= {" ".join(line.split()) for line in output().splitlines()}


def test_pause_waits_until_the_trainer_has_no_node(service: Service, output: Output) -> None:
    assert run(["pause", "digits", "--reason", "its data moves"]) == 0
    assert output() == "digits is paused at step 1,200 and has no node.\n"
    assert {"reason": "its data moves"} in service.bodies
    assert ("GET", "/v1/trainers/id-digits") in service.requests


def test_a_trainer_that_keeps_its_nodes_stays_paused_and_fails_the_command(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.documents["GET", "/v1/trainers/id-digits"] = trainer(status="paused")
    assert run(["pause", "digits", "--wait", "0.3"]) == 1
    assert "digits is paused, but still has nodes after 0.3 s" in capsys.readouterr().err
    assert run(["pause", "digits", "--wait", "0"]) == 0


def test_unpause_says_whether_there_was_a_pause(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers/digits"] = trainer(status="paused", nodes=[])
    assert run(["unpause", "digits"]) == 0
    assert output() == "digits goes on from step 1,200 as soon as a plan grants it nodes.\n"
    service.documents["GET", "/v1/trainers/digits"] = trainer(state="waiting", nodes=[])
    assert run(["unpause", "digits"]) == 0
    assert output() == "digits was not paused: nothing has changed.\n"


def test_retry_says_from_where_it_goes_on(service: Service, output: Output) -> None:
    assert run(["retry", "digits"]) == 0
    assert output().startswith("digits goes on from its checkpoint of step 1,100,")
    service.documents["POST", "/v1/trainers/digits/retry"] = trainer(state="waiting", nodes=[])
    assert run(["retry", "digits"]) == 0
    assert "its beginning: it has no checkpoint" in output()


def test_cancel_tells_where_it_ended(service: Service, output: Output) -> None:
    assert run(["cancel", "digits"]) == 0
    assert output() == "digits is cancelled at step 1,200.\n"


def test_of_several_none_is_cancelled_where_one_is_not_known(service: Service, output: Output) -> None:
    assert run(["cancel", "digits", "no-such"]) == 1
    assert [method for method, _ in service.requests if method == "POST"] == []
    assert run(["cancel", "digits", "digits"]) == 0
    assert output().count("digits is cancelled at step 1,200.\n") == 2


def test_scale_sends_a_priority(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "digits", "--priority", "-5"]) == 0
    assert service.bodies == [{"priority": -5}]
    assert "priority 0" in capsys.readouterr().out
    assert run(["scale", "digits", "--priority", "101"]) == 2
