"""`oakum profile pipeline`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cells import each
from oakum_client.cli import load_commands
from oakum_client.cli.app import run

load_commands()

CHIMERA = ["profile", "pipeline", "--stages", "4", "--micro-batches", "8", "--schedule", "chimera"]


def test_it_says_how_long_workers_idle_and_what_they_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CHIMERA, "--scheme", "concatenation", "--backward", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "chimera: 8 micro-batches through 4 stages on 4 workers in 2 pipes",
        "makespan     18 forward passes; a backward pass takes 1",
        "bubbles      11.1 %  ((D-2f)/(2fN+D-2f) = 11.1 %)",
        "activations  3 4 4 3 micro-batches at most, by worker",
    ]


def test_it_names_no_formula_where_none_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CHIMERA, "--backward", "1.5"]) == 0
    assert "%  (" not in capsys.readouterr().out


def test_it_draws_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "pipeline", "--stages", "2", "--micro-batches", "2", "--backward", "1", "--draw"]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == ["0 |F0|F1|·  B0|·  B1|", "1 |·  F0|B0|F1|B1|", ""]


def test_it_prints_json_and_writes_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*CHIMERA, "--json", "--svg", str(tmp_path / "chimera.svg")]) == 0
    document = json.loads(capsys.readouterr().out)
    workers = document.pop("workers")
    assert document == {
        "schedule": "chimera",
        "num_stages": 4,
        "num_workers": 4,
        "num_pipes": 2,
        "num_micro_batches": 8,
        "doubled_forwards": True,
        "backward": 2.0,
        "makespan": 28.0,
        "bubble_ratio": pytest.approx(2 / 14),
        "formula": {"text": "(D-2f)/(1.5fN+D-2f)", "value": pytest.approx(2 / 14)},
        "peak_activations": [7.0, 8.0, 8.0, 7.0],
    }
    assert workers[0][0] == {
        "kind": "forward",
        "stage": 0,
        "pipe": 0,
        "micro_batches": [0, 1],
        "start": 0.0,
        "end": 2.0,
    }
    assert ElementTree.parse(tmp_path / "chimera.svg").getroot().tag.endswith("svg")


def test_stages_are_dealt_out_to_workers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    options = ["--stages", "6", "--micro-batches", "4", "--schedule", "interleaved", "--stages-per-worker", "3"]
    assert run(["profile", "pipeline", *options]) == 0
    assert "through 6 stages on 2 workers\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stages", "3", "--schedule", "chimera"], "Chimera needs an even number of workers"),
        (["--stages", "3", "--schedule", "interleaved"], "3 stages cannot be dealt out 2 to a worker"),
        (["--stages", "2", "--svg", "/nowhere/schedule.svg"], "there is no folder /nowhere"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "pipeline", "--micro-batches", "4", *options]) == 1
    assert message in capsys.readouterr().err


def test_it_needs_no_torch() -> None:
    """In a process of its own: this one may have imported torch long ago."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from oakum_client.cli import load_commands; from oakum_client.cli.app import run\n"
        f"load_commands(); assert run({CHIMERA!r}) == 0\n"
        f"assert run({[*CHIMERA[:-1], 'zero-bubble']!r}) == 1"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (
        0,
        "oakum: the schedule 'zero-bubble' needs torch: run pip install '.[worker]' in Oakum's checkout\n",
    )


@each(
    ("options", "problem"),
    [
        (["--schedule", "1f1b", "--pipes", "4"], "--pipes and --scheme are for chimera: leave them out for 1f1b"),
        (["--schedule", "gpipe", "--scheme", "forward-doubling"], "leave them out for gpipe"),
        (["--schedule", "chimera", "--stages-per-worker", "2"], "leave out --stages-per-worker"),
        (["--backward", "inf", "--json"], "less than or equal to 1000"),
    ],
)
def test_options_that_would_mean_nothing_are_refused(
    options: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "pipeline", "--stages", "4", "--micro-batches", "8", *options]) != 0
    assert problem in capsys.readouterr().err
