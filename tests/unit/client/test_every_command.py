"""What all commands have in common: help, usage, JSON, interrupts, durations, and texts of others."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from answering_service import EVENT, EXPLANATION, NODES, Output, Service, trainer
from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import app, run
from oakum_client.cli.units import duration, parse_duration

load_commands()

COMMANDS = (
    "submit",
    "ps",
    "show",
    "explain",
    "scale",
    "annotate",
    "pause",
    "unpause",
    "cancel",
    "retry",
    "metrics",
    "logs",
    "plan",
    "nodes",
    "holes",
    "events",
)


@pytest.mark.parametrize(
    "arguments",
    [
        ["scale", "digits"],
        ["scale", "digits", "--sizes", "few"],
        ["scale", "digits", "--sizes", "1,,2"],
        ["scale", "digits", "--weight", "-1"],
        ["scale", "digits", "--min-nodes", "0"],
        ["annotate", "digits"],
        ["annotate", "digits", "--tag", "Upper"],
        ["annotate", "digits", "--tag", "a", "--untag", "a"],
        ["holes", "--since", "yesterday"],
        ["show"],
        ["launch"],
    ],
)
def test_wrong_usage_exits_with_2_and_calls_nobody(service: Service, arguments: list[str]) -> None:
    assert run(arguments) == 2
    assert service.requests == []


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["ps"], "trainers"),
        (["show", "digits"], "spec"),
        (["explain", "digits"], "reason"),
        (["logs", "digits"], "lines"),
        (["scale", "digits", "--weight", "2"], "spec"),
        (["annotate", "digits", "--tag", "a"], "spec"),
        (["cancel", "digits"], "spec"),
        (["plan"], "allocations"),
        (["nodes"], "nodes"),
        (["holes"], "holes"),
        (["events"], "events"),
    ],
)
def test_json_prints_the_document_alone(service: Service, output: Output, arguments: list[str], key: str) -> None:
    assert run([*arguments, "--json"]) == 0
    assert key in json.loads(output())


def test_an_interrupt_ends_quietly_with_130(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.documents["GET", "/v1/nodes"] = KeyboardInterrupt()
    assert run(["nodes"]) == 130
    assert capsys.readouterr() == ("", "")


@each("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str, output: Output) -> None:
    assert run([command, "--help"]) == 0
    assert f"$ oakum {command}" in output()


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from oakum_client.cli import load_commands; from oakum_client.cli.app import run\n"
        "load_commands(); code = run(['--help'])\n"
        "heavy = {'torch', 'sqlalchemy', 'fastapi', 'httpx', 'pulp'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f" {command} " in done.stdout for command in COMMANDS)


@each(("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("1.5h", 5400), ("2 d", 172800)])
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@each(
    ("seconds", "text"),
    [(0.0121, "12 ms"), (0.312, "0.312 s"), (42, "42 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"),
     (273600, "3 d 4 h")],
)  # fmt: skip
def test_durations_are_written(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_app_is_shared_by_all_command_modules() -> None:
    assert {command.callback.__name__ for command in app.registered_commands if command.callback} >= set(COMMANDS)


_OBEYED = "\x1b]52;c;ZXZpbA==\x07\x1b[2Jall\x9b is \u202ewell\x7f"


@each(
    ("words", "asked", "document"),
    [
        (["ps"], "/v1/trainers", {"trainers": [trainer(condition=_OBEYED)]}),
        (["show", "digits"], "/v1/trainers/digits", trainer(message=_OBEYED, metrics={_OBEYED: 1.0})),
        (["show", "digits", "--json"], "/v1/trainers/digits", trainer(message=_OBEYED)),
        (["explain", "digits"], "/v1/trainers/digits/explain", {**EXPLANATION, "reason": _OBEYED}),
        (["events"], "/v1/events/recent", {"events": [{**EVENT, "message": _OBEYED}]}),
        (["nodes"], "/v1/nodes", {**NODES, "nodes": [{**NODES["nodes"][1], "foreground_job": _OBEYED}]}),
        (
            ["show", "digits"],
            "/v1/trainers/digits",
            httpx.Response(409, json={"title": "Conflict", "status": 409, "detail": _OBEYED}),
        ),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else None,
)
def test_what_others_have_written_is_no_command_to_the_terminal(
    service: Service, capsys: pytest.CaptureFixture[str], words: list[str], asked: str, document: Any
) -> None:
    """An administrator looks at what users' code says."""
    service.documents["GET", asked] = document
    run(words)
    told = "".join(capsys.readouterr())
    assert "all is well" in told, told
    assert not [one for one in told if one in "\x1b\x07\x9b\u202e\x7f"], told.encode()
