"""`oakum forecast`: what it tells the service of a log, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from answering_service import NODES, Output, Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()

VIEW: dict[str, Any] = {
    "seen": 12, "told": 488, "source": "idle.csv", "by": "anna", "at": 1.8e9,
    "new_hole_s": 1140.0, "old_hole_s": 2280.0,
}  # fmt: skip
NOTHING: dict[str, Any] = {"seen": 3, "told": 0, "new_hole_s": None, "old_hole_s": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Service) -> Path:
    monkeypatch.chdir(tmp_path)
    service.documents["GET", "/v1/forecast"] = VIEW
    service.documents["PUT", "/v1/forecast"] = VIEW
    service.documents["DELETE", "/v1/forecast"] = NOTHING
    return tmp_path


def idle_log(path: Path, node: str, number: int) -> None:
    """A log of so many holes of 1 to `number` minutes, and of one that goes on to its end."""
    rows = [f"{node}{index},0,{60 * (index + 1)}\n" for index in range(number)]
    path.write_text(f"node,start_s,end_s\n{''.join(rows)}last,0,100000\n")


def test_the_forecast_and_its_origin_are_told(folder: Path, output: Output) -> None:
    assert run(["forecast", "show"]) == 0
    told = " ".join(output().split())
    assert "expected to stay so for 19 min, after an hour for another 38 min." in told
    assert "Learnt from 12 idle times that the service has seen end, and 488 of idle.csv, told by anna" in told


def test_json_is_the_document_alone(folder: Path, output: Output) -> None:
    assert run(["forecast", "show", "--json"]) == 0
    assert json.loads(output()) == VIEW


def test_a_log_s_ended_holes_are_told(folder: Path, service: Service) -> None:
    idle_log(folder / "idle.csv", NODES["nodes"][0]["name"], 20)
    assert run(["forecast", "learn", "idle.csv"]) == 0
    assert service.bodies == [{"source": "idle.csv", "lengths_s": [60.0 * (index + 1) for index in range(20)]}]


def test_of_many_holes_500_are_told_that_are_spread_over_all(folder: Path, service: Service) -> None:
    idle_log(folder / "idle.csv", "n", 1500)
    assert run(["forecast", "learn", "idle.csv"]) == 0
    told = service.bodies[0]["lengths_s"]
    assert (len(told), told[0], told[-1]) == (500, 120.0, 60.0 * 1499)


def test_too_short_a_log_is_refused(folder: Path, service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    idle_log(folder / "idle.csv", "n", 3)
    assert run(["forecast", "learn", "idle.csv"]) == 1
    assert "idle.csv has 3 idle times that ended within it: expected 10 or more" in capsys.readouterr().err
    assert service.bodies == []


def test_what_the_service_has_seen_itself_is_not_told_again(
    folder: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["forecast", "learn", "own"]) == 1
    assert "counts already: give a log of another time" in " ".join(capsys.readouterr().err.split())
    assert service.bodies == []


def test_a_log_of_other_nodes_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle_log(folder / "idle.csv", "elsewhere", 20)
    assert run(["forecast", "learn", "idle.csv"]) == 0
    assert "none of the 21 nodes of idle.csv is in this cluster" in " ".join(capsys.readouterr().err.split())


def test_a_withdrawal_says_what_is_known_then(folder: Path, output: Output) -> None:
    assert run(["forecast", "withdraw"]) == 0
    assert "Too few idle times have ended yet" in output()
    assert run(["forecast", "show"]) == 0
