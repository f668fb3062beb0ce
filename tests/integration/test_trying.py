"""Tries in separate processes: what `oakum try` prints, and that no process is left behind, however a try ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_client.cli.trying import NoDisplay, try_spec
from processes import any_runs
from waiting import DEADLINE_S, wait_until
from warm_commands import start_command, tries_are_forked
from warm_processes import run_warm

SPEC = "name: t\nentrypoint: tasks:{function}\nglobal_batch: 8\nepochs: 2\nmax_nodes: 1\n"
TASKS = """
import os, subprocess, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from oakum_worker.task import Task

class Data:
    def __init__(self, act=lambda: None): self.act = act
    def __len__(self): return 40
    def __getitem__(self, i):
        self.act()
        return torch.ones(4), i % 2

def build(act=lambda: None, **more):
    model = nn.Linear(4, 2)
    print("the task prints this")
    return Task(model=model, dataset=Data(act), loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]),
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1), **more)

def forever():
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["PIDS"], "w") as file:
        file.write(f"{os.getpid()} {helper.pid}")
    time.sleep(600)

def good(): return build()
def asks(): return build(more=input("How deep? "))
def endless(): return build(forever)
def slow_evaluation(): return build(evaluate=lambda model: forever())
def daemon():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    with open(os.environ["PIDS"], "w") as file:
        file.write(str(child.pid))
    return build()
def killed(): return build(lambda: os.kill(os.getpid(), 9))
def leaves(): return build(lambda: os._exit(7))
def aborts(): return build(os.abort)
"""


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    """What is tried out in this process is forked; the first test starts all of it afresh, as a user does."""
    with tries_are_forked():
        yield


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "tasks.py").write_text(TASKS)
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return folder


def spec_in(folder: Path, function: str) -> Path:
    path = folder / "spec.yaml"
    path.write_text(SPEC.format(function=function))
    return path


def test_a_spec_is_tried_without_a_service_and_without_a_trace(folder: Path) -> None:
    path = spec_in(folder, "good")
    before = sorted(folder.rglob("*"))
    command = [
        sys.executable,
        "-m",
        "oakum",
        "try",
        str(path),
        "--json",
        "--check-limit",
        f"{DEADLINE_S:g}s",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)[str(path)]
    assert told["passed"]
    assert told["facts"]["total_samples"] == 80
    assert sorted(folder.rglob("*")) == before


def test_the_worker_alone_tries_too(folder: Path) -> None:
    done = run_warm("oakum_worker", "try", str(spec_in(folder, "gone")), "--json")
    assert done.returncode == 2
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["check"]) == ("failed", "importing tasks")


def test_what_takes_too_long_is_named_and_ended(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only reading is short of time: whatever comes before may take as long as a busy machine needs.
    limits = {"reading the first batch": 1.0}
    monkeypatch.setattr("oakum_client.cli.trying._limit_of", lambda check, given: limits.get(check, DEADLINE_S))
    monkeypatch.setattr("oakum_client.cli.trying._ANSWER_S", DEADLINE_S)
    trial = try_spec(spec_in(folder, "endless"), 60.0, NoDisplay())
    assert trial.failure is not None
    line = 1 + TASKS.splitlines().index('        file.write(f"{os.getpid()} {helper.pid}")') + 1
    place = f"{folder / 'tasks.py'}:{line}"
    assert trial.failure.startswith(
        f"reading the first batch takes longer than 1 s (it is at {place}): correct what"
    )
    wait_until("the try has begun to read", (tmp_path / "pids").exists)
    assert not any_runs(tmp_path / "pids")


def test_a_task_that_asks_for_input_is_told_that_there_is_none(folder: Path) -> None:
    failure = try_spec(spec_in(folder, "asks"), DEADLINE_S, NoDisplay()).failure
    assert failure is not None
    assert "raised EOFError: EOF when reading a line" in failure


def test_an_evaluation_is_not_waited_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "oakum_client.cli.trying._limit_of", lambda check, given: 1.0 if "eval" in check else 240.0
    )
    trial = try_spec(spec_in(folder, "slow_evaluation"), 60.0, NoDisplay())
    assert (trial.failure, trial.total_samples) == (None, 80)
    assert not any_runs(tmp_path / "pids")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("killed", "was killed: the machine has probably run out of memory"),
        pytest.param("leaves", "ended the process with status 7", marks=pytest.mark.soak),
        pytest.param(
            "aborts",
            "crashed in compiled code: a library aborted, for instance because of an invalid argument or a lack",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_death_is_told_with_what_was_being_done(folder: Path, function: str, said: str) -> None:
    trial = try_spec(spec_in(folder, function), DEADLINE_S, NoDisplay())
    assert trial.failure is not None
    assert trial.failure.startswith(f"reading the first batch {said}")
    may_lack_memory = function in ("killed", "aborts")
    assert ("To need less memory: lower micro_batch (not set; " in trial.failure) == may_lack_memory
    assert ("(signal 6, SIGABRT). `" in trial.failure) == (function == "aborts")
    assert trial.failure.endswith("  the task prints this")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.soak)]
)
def test_nothing_is_left_of_a_try_that_is_interrupted(
    folder: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    command = ("oakum", "try", str(spec_in(folder, "endless")), "--check-limit", "10m")
    with (tmp_path / "printed").open("wb") as printed:
        process = start_command(*command, environment=os.environ, output=printed)
    pids = tmp_path / "pids"
    wait_until("the task reads", lambda: pids.exists() and len(pids.read_text().split()) == 2)
    process.send_signal(number)
    assert process.wait(timeout=DEADLINE_S) == status
    assert not any_runs(pids)


def test_a_daemon_that_keeps_the_streams_open_holds_nobody_up(folder: Path, tmp_path: Path) -> None:
    try:
        trial = try_spec(spec_in(folder, "daemon"), DEADLINE_S, NoDisplay())
        assert (trial.failure, trial.total_samples) == (None, 80)
    finally:
        os.kill(int((tmp_path / "pids").read_text()), signal.SIGKILL)


def test_where_there_is_no_torch_the_try_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    trial = try_spec(spec_in(folder, "endless"), 1.0, NoDisplay())
    assert trial.left_out == "torch is not installed where `oakum` runs, and the model would have to run"
