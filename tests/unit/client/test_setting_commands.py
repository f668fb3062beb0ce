"""`oakum config running`, `set`, `reset` and `objectives` against answers from memory."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from answering_service import Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()
OBJECTIVE = {"name": "objective", "value": "deadline", "at_start": "speedup", "by": "anna", "at": 1_700_000_000.0}
CAP = {"name": "user_cap", "value": None, "at_start": None, "by": None, "at": None}
Output = Callable[[], str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr().out


@pytest.fixture
def answered(service: Service) -> Service:
    service.documents |= {
        ("GET", "/v1/settings"): {"settings": [OBJECTIVE, CAP]},
        ("PUT", "/v1/settings/objective"): OBJECTIVE,
        ("PUT", "/v1/settings/user_cap"): CAP,
        ("DELETE", "/v1/settings/objective"): OBJECTIVE | {"value": "speedup", "by": None, "at": None},
        ("GET", "/v1/objectives"): {
            "current": "deadline",
            "objectives": [
                {"name": "speedup", "description": "fast"},
                {"name": "deadline", "description": "in time"},
            ],
            "quantities": {"samples": "samples made"},
        },
    }
    return service


def test_the_running_service_is_asked_for_what_was_changed(answered: Service, output: Output) -> None:
    assert run(["config", "running"]) == 0
    _, objective, cap = output().splitlines()
    assert objective.split()[:4] == ["objective", "deadline", "speedup", "anna"]
    assert cap.split() == ["user_cap", "-", "-", "-", "-"]
    assert run(["config", "running", "--json"]) == 0
    assert json.loads(output())["settings"] == [OBJECTIVE, CAP]


@pytest.mark.parametrize(("given", "sent"), [("deadline", "deadline"), ("None", None), ("TRUE", True), ("3", "3")])
def test_a_setting_is_set(answered: Service, output: Output, given: str, sent: object) -> None:
    assert run(["config", "set", "objective", given]) == 0
    assert output() == "objective is deadline now; the service was started with speedup\n"
    assert answered.bodies[-1] == {"value": sent}


def test_a_setting_is_reset(answered: Service, output: Output) -> None:
    assert run(["config", "reset", "objective"]) == 0
    assert output() == "objective is speedup, as at the service's start\n"


def test_the_objective_in_force_is_marked(answered: Service, output: Output) -> None:
    assert run(["config", "objectives"]) == 0
    _, speedup, deadline, last = output().splitlines()
    assert (speedup.split(), deadline.split()) == (["speedup", "fast"], ["deadline", "*", "in", "time"])
    assert last == "In force: deadline. Expressions may use samples."
