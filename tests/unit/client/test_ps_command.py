"""`oakum ps`: which trainers are listed, by which columns, and what is said above and below them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from answering_service import Output, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run
from oakum_client.cli.screen import bounds_of, size_of
from oakum_service.api.schemas.trainers import TrainerView
from oakum_worker.spec import TrainerSpec

load_commands()

_WHY = "Trains on 2 nodes, 1 more to join: no other node is idle."


def test_ps_lists_live_trainers_and_all_on_request(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers?live=true"] = {"trainers": [trainer()]}
    assert run(["ps"]) == 0
    header, row = output().splitlines()
    assert header.split()[:4] == ["NAME", "STATE", "NODES", "OF"]
    assert row.split() == ["digits", "running", "2", "1-8", "25%", "1,280", "3", "min", "1", "min"]
    assert run(["ps", "--all"]) == 0
    assert "finished" in output()


def test_ps_prints_the_columns_rows_and_order_that_are_asked_for(service: Service, output: Output) -> None:
    slow, fast = trainer("slow", samples_per_s=5.0), trainer("fast", samples_per_s=80.0, user="ada")
    waiting = trainer("waiting", state="waiting", samples_per_s=None)
    service.documents["GET", "/v1/trainers"] = {"trainers": [waiting, slow, fast]}
    assert run(["ps", "-o", "name,why", "--sort", "-rate", "--user", "ada"]) == 0
    assert service.requests == [("GET", "/v1/trainers?live=true&user=ada")]
    header, *rows = output().splitlines()
    assert header.split() == ["NAME", "WHY"]
    assert [row.split(maxsplit=1) for row in rows] == [[name, _WHY] for name in ("fast", "slow", "waiting")]
    assert run(["ps", "-o", "+loss,user", "--sort", "rate"]) == 0
    header, *rows = output().splitlines()
    assert header.split() == ["NAME", "STATE", "NODES", "OF", "DONE", "SAMPLES/S", "LEFT", "AGE", "LOSS", "USER"]
    assert [row.split()[0] for row in rows] == ["slow", "fast", "waiting"]


def test_ps_says_below_what_is_wrong_and_what_trainers_without_nodes_wait_for(
    service: Service, output: Output
) -> None:
    ill = trainer("ill", condition="Attempt 2 of 5.")
    waiting = [trainer(f"w{number}", state="waiting", nodes=[], reason="No node is idle.") for number in range(30)]
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer(), ill, *waiting]}
    assert run(["ps"]) == 0
    *_, below = output().partition("\n\n")
    first, second, *_, last = below.splitlines()
    assert (first, second) == ("ill: Attempt 2 of 5.  " + _WHY, "w0: No node is idle.")
    assert last == "and 11 more: `oakum explain NAME`"
    assert len(below.splitlines()) == 21


@pytest.mark.parametrize("words", [["-o", "name,los"], ["--sort", "-los"]])
def test_a_column_that_there_is_not_is_told_before_the_service_is_asked(
    service: Service, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(["ps", *words]) == 2
    told = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "there is no column 'los': expected some of name, state, nodes" in told
    assert "did you mean 'loss'?" in told
    assert service.requests == []


def test_ps_of_live_trainers_asks_for_none_that_has_ended(service: Service) -> None:
    """Years of them: hundreds of answers."""
    assert run(["ps"]) == 0
    assert service.requests == [("GET", "/v1/trainers?live=true")]


def test_ps_lists_those_with_a_tag(service: Service, output: Output) -> None:
    tagged = trainer(spec=trainer()["spec"] | {"tags": ["a", "b"]})
    service.documents["GET", "/v1/trainers"] = {"trainers": [tagged, trainer("other")]}
    assert run(["ps", "--tag", "a", "-o", "name,tags"]) == 0
    assert [row.split() for row in output().splitlines()[1:]] == [["digits", "a,", "b"], ["other", "-"]]
    assert run(["ps", "--all", "--tag", "a"]) == 0
    assert service.requests == [("GET", "/v1/trainers?live=true&tag=a"), ("GET", "/v1/trainers?tag=a")]
    service.documents["GET", "/v1/trainers"] = {"trainers": []}
    assert run(["ps", "--tag", "a"]) == 0
    assert output().splitlines()[-1].startswith("No trainers with the tag a: ")


def test_ps_says_that_oakum_is_held_and_why(service: Service, output: Output) -> None:
    said = "Held since 2026-11-22 08:00 UTC by anna: maintenance at 8. `oakum resume` ends the hold."
    hold = {"held": True, "reason": "maintenance at 8", "by": "anna", "since": 5.0, "sentence": said}
    held = trainer(status="held", reason=said, granted=[], joining=[], leaving=["n1", "n2"])
    service.documents["GET", "/v1/trainers"] = {"trainers": [held], "next": None, "hold": hold}
    assert run(["ps"]) == 0
    banner, _, _, row, *_ = output().splitlines()
    assert banner == said
    assert row.split()[:2] == ["digits", "held"]
    service.documents["GET", "/v1/trainers/digits"] = held
    assert run(["show", "digits"]) == 0
    shown = output()
    assert said in shown
    assert "(2 leaving)" in shown
    assert "joining" not in shown
    service.documents["GET", "/v1/trainers"] = {"trainers": [], "next": None, "hold": hold}
    assert run(["ps"]) == 0
    assert output().startswith(said)


def test_ps_says_first_that_the_service_cannot_write(service: Service, output: Output) -> None:
    said = "the service cannot write to its database, sqlite:////data/oakum.db: the disk is full. Free space there"
    service.documents["GET", "/v1/trainers"] = {"trainers": [trainer()], "next": None, "fault": said}
    assert run(["ps"]) == 0
    banner, _, _, row = output().splitlines()
    assert (banner, row.split()[0]) == (f"{said}.", "digits")


def test_ps_without_trainers_says_how_to_begin(service: Service, output: Output) -> None:
    service.documents["GET", "/v1/trainers"] = {"trainers": []}
    assert run(["ps"]) == 0
    assert output().startswith(
        "No trainers: `oakum submit SPEC.yaml` hands one in, and `oakum ps --all` lists those"
    )


@each(
    ("fields", "of", "bounds"),
    [
        ({"min_nodes": 2, "max_nodes": 8}, "2-8", "2 to 8 nodes"),
        ({"sizes": [1, 2, 4]}, "1,2,4", "1, 2 or 4 nodes"),
        ({"sizes": [1, 2, 4], "min_nodes": 4}, "4", "4 to 4 nodes"),
        ({"sizes": "powers_of_two", "max_nodes": 32}, "1,2..32", "1, 2, 4, 8, 16 or 32 nodes"),
    ],
)
def test_the_numbers_of_nodes_that_a_spec_allows_are_told(fields: dict[str, Any], of: str, bounds: str) -> None:
    spec = TrainerSpec(name="digits", entrypoint="a:b", global_batch=64, epochs=1, **fields)
    view = TrainerView.model_construct(spec=spec)
    assert (size_of(view), bounds_of(spec)) == (of, bounds)


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
