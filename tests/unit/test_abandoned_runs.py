"""What a killed test run has left hinders no later run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

from abandoned_runs import clear_away, is_over
from inherited_state import folder_of_run
from processes import runs

_RUN = """
import json, os, subprocess, sys
import abandoned_runs, inherited_state
inherited_state.replace_inherited_state()
list(abandoned_runs.clear_away())  # which leaves the run's own lock alone
started = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=subprocess.DEVNULL)
forked = os.fork()
if forked:
    print(json.dumps([os.environ["HOME"], started.pid, forked]), flush=True)
sys.stdin.read()
"""


def test_processes_and_folders_of_a_killed_run_are_cleared_away_and_those_of_a_live_one_stay() -> None:
    without_home = {name: value for name, value in os.environ.items() if not name.startswith("OAKUM_")}
    environment = without_home | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        home, started, forked = json.loads(run.stdout.readline())
        list(clear_away())
        assert psutil.pid_exists(started)
        assert Path(home).exists()
        assert not is_over(Path(home).parent)
        run.kill()
        run.wait()
        assert is_over(Path(home).parent)
        list(clear_away())  # another run that begins just now may do it first
        assert not runs(started)
        assert not Path(home).parent.exists()
        assert is_over(Path(home).parent)
        assert psutil.pid_exists(forked)  # until its standard input ends: it does not hold its parent's lock


def test_a_run_that_lives_is_not_over_for_its_own_processes() -> None:
    assert not is_over(folder_of_run())
