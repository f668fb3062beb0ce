"""`oakum quota` and `oakum audit` against answers from memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from answering_service import Service
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()
USED = {"trainers": 2, "nodes": 3, "node_hours": 12.3456, "storage_gib": 1.5}
LIMITS = {"trainers": 100, "nodes": 8, "node_hours": None, "storage_gib": None, "weight": 1.0}
QUOTA = {"user": "ada", "own": True, "limits": LIMITS, "used": USED}
ENTRY = {
    **{
        "id": 41,
        "at": 1_700_000_000.0,
        "actor": "anna",
        "role": "admin",
        "token": "0123456789ab",
        "request": "r1",
    },
    **{"address": "10.0.0.7", "action": "trainer.paused", "subject": "digits", "owner": "ada", "refused": False},
    "details": {"id": "u-u-i-d", "reason": "lunch"},
}
Output = Callable[[], str]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    return lambda: capsys.readouterr().out


@pytest.fixture
def answered(service: Service) -> Service:
    service.documents |= {
        ("GET", "/v1/quotas"): {"quotas": [QUOTA, QUOTA | {"user": "bob", "own": False}]},
        ("GET", "/v1/quotas/ada"): QUOTA,
        ("PUT", "/v1/quotas/ada"): QUOTA,
        ("DELETE", "/v1/quotas/a/b"): {},
        ("GET", "/v1/audit"): {
            "entries": [ENTRY | {"id": 42, "actor": "root", "address": ""}, ENTRY],
            "next": None,
        },
    }
    return service


def test_quotas_are_listed_with_what_is_used(answered: Service, output: Output) -> None:
    assert run(["quota", "list"]) == 0
    _, ada, bob = output().splitlines()
    assert ada.split() == ["ada", "own", "2", "of", "100", "3", "of", "8", "12.35", "1.5", "1"]
    assert bob.split()[:2] == ["bob", "usual"]
    assert run(["quota", "show", "ada", "--json"]) == 0
    assert json.loads(output()) == QUOTA


def test_limits_are_sent_as_given(answered: Service, output: Output) -> None:
    assert run(["quota", "set", "ada", "--nodes", "0", "--node-hours", "12.5", "--weight", "4"]) == 0
    [sent] = answered.sent("PUT", "/v1/quotas/ada")
    assert {name: value for name, value in sent.items() if value is not None} == {
        "nodes": 0,
        "node_hours": 12.5,
        "weight": 4.0,
    }
    assert run(["quota", "clear", "a/b"]) == 0
    assert answered.requests[-1] == ("DELETE", "/v1/quotas/a%2Fb")
    assert output().endswith("a/b has the usual quota\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "no limit is given: say which, such as --nodes 64, or `oakum quota clear ada`"),
        (["--weight", "0"], "--weight 0.0: Input should be greater than 0"),
        (["--node-hours", "inf"], "--node-hours inf: Input should be a finite number"),
    ],
)
def test_a_limit_that_cannot_be_is_not_sent(
    answered: Service, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quota", "set", "ada", *arguments]) != 0
    assert told in capsys.readouterr().err
    assert answered.requests == []


def test_the_audit_log_is_printed_the_newest_last(answered: Service, output: Output) -> None:
    assert run(["audit", "--by", "anna", "--subject", "digits", "--limit", "2"]) == 0
    _, first, second = output().splitlines()
    assert first.split()[0] == "41"
    assert first.endswith("anna  admin  10.0.0.7      trainer.paused  digits  reason lunch")
    assert "root" in second
    assert "this machine" in second
    [(_, asked)] = answered.requests
    assert asked == "/v1/audit?actor=anna&subject=digits&limit=2"


def test_the_audit_log_is_told_as_json(answered: Service, output: Output) -> None:
    assert run(["audit", "--json", "--before", "43"]) == 0
    found: dict[str, Any] = json.loads(output())
    assert found["entries"][1] == ENTRY
