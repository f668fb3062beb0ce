"""Slurm's commands: their environment, their time limit, and how they fail."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oakum_service.config import SlurmSettings
from oakum_service.errors import CommandFailed
from oakum_service.instruments import CALL_FAILURES, CALLS
from oakum_service.schedulers.slurm.commands import SlurmCommands
from processes import runs

Install = Callable[[str, str], Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Put a command with this shell script into the folder of Slurm's commands."""

    def put(name: str, script: str) -> Path:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return put


@pytest.fixture
def commands(tmp_path: Path) -> SlurmCommands:
    return SlurmCommands(SlurmSettings(bin_dir=tmp_path, command_timeout_s=10.0))


def failure(commands: SlurmCommands, name: str, *arguments: str) -> CommandFailed:
    with pytest.raises(CommandFailed) as caught:
        commands.run(name, *arguments)
    return caught.value


def test_arguments_arrive_as_they_are_and_see_no_shell(commands: SlurmCommands, install: Install) -> None:
    install("squeue", "printf '%s;' \"$@\"")
    assert commands.run("squeue", "$(id)", "a b", "--x=*") == b"$(id);a b;--x=*;"


def test_a_command_gets_what_it_is_given_and_no_more(commands: SlurmCommands, install: Install) -> None:
    install("sbatch", "cat")
    assert commands.run("sbatch", given=b"#!/bin/sh\n") == b"#!/bin/sh\n"
    assert commands.run("sbatch") == b""


def test_options_from_the_environment_do_not_reach_it(
    commands: SlurmCommands, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SQUEUE_USERS", "SLURM_JOB_ID", "SBATCH_PARTITION", "SLURM_CONF", "SLURM_JWT"):
        monkeypatch.setenv(name, "set")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    install("squeue", "env")
    told = commands.run("squeue").decode().splitlines()
    assert {line for line in told if line.startswith(("S", "LC_ALL"))} >= {
        "SLURM_CONF=set",
        "SLURM_JWT=set",
        "LC_ALL=C",
    }
    assert not [line for line in told if line.startswith(("SQUEUE_", "SBATCH_", "SLURM_JOB", "SLURM_TIME"))]


def test_times_come_in_seconds_where_that_is_wanted(commands: SlurmCommands, install: Install) -> None:
    install("squeue", 'echo "$SLURM_TIME_FORMAT $TZ"')
    assert commands.run("squeue", epoch_times=True) == b"%s UTC\n"


def test_a_failure_names_command_status_and_last_line(commands: SlurmCommands, install: Install) -> None:
    path = install("scancel", "echo first >&2; echo 'scancel: error: Access denied' >&2; echo >&2; exit 3")
    error = failure(commands, "scancel", "17")
    assert str(error) == f"`{path} 17` ended with status 3: scancel: error: Access denied"
    assert error.last_line == "scancel: error: Access denied"


def test_a_command_killed_by_a_signal_says_so(commands: SlurmCommands, install: Install) -> None:
    install("squeue", "kill -9 $$")
    assert "ended with signal 9: it wrote nothing to stderr" in str(failure(commands, "squeue"))


def test_a_command_that_is_not_there_says_what_to_set(commands: SlurmCommands) -> None:
    assert "OAKUM_SLURM_BIN_DIR" in str(failure(commands, "squeue"))


def test_a_command_that_is_not_on_path_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = failure(SlurmCommands(SlurmSettings()), "squeue")
    assert "squeue is not on PATH" in str(error)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path, install: Install) -> None:
    install("squeue", f"sleep 300 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()
    error = failure(SlurmCommands(SlurmSettings(bin_dir=tmp_path, command_timeout_s=1.0)), "squeue")
    assert "had not ended after 1 s and was killed" in str(error)
    assert time.monotonic() - began < 60
    assert not runs(int((tmp_path / "child").read_text()))


def test_much_output_is_read_whole(commands: SlurmCommands, install: Install) -> None:
    install("squeue", "head -c 20000000 /dev/zero")
    assert len(commands.run("squeue")) == 20_000_000


def test_calls_and_failures_are_counted_by_command(commands: SlurmCommands, install: Install) -> None:
    def counts() -> tuple[float, float]:
        values = [metric.labels("sacct")._value.get() for metric in (CALLS, CALL_FAILURES)]
        return values[0], values[1]

    install("sacct", "[ -z $1 ]")
    calls, failures = counts()
    commands.run("sacct")
    failure(commands, "sacct", "x")
    assert counts() == (calls + 2, failures + 1)


def test_who_else_starts_a_command_can_have_it_obey_the_same_rules(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "debug")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    install("sbatch", 'echo "$SBATCH_PARTITION,$SLURM_CONF,$1"; sleep "$2"')
    words = SlurmCommands(SlurmSettings(bin_dir=tmp_path, command_timeout_s=1.0)).guarded("sbatch")
    assert subprocess.check_output([*words, "job.sh", "0"], env=dict(os.environ)) == b",/etc/slurm.conf,job.sh\n"
    assert subprocess.run([*words, "job.sh", "300"], stdout=subprocess.DEVNULL).returncode != 0
