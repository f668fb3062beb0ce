"""What a killed test run has left hinders no later run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from abandoned_runs import clear_away
from processes import runs

_RUN = """
import json, os, subprocess, sys
import inherited_state
inherited_state.replace_inherited_state()
started = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(json.dumps([os.environ["HOME"], started.pid]), flush=True)
sys.stdin.read()
"""


def test_processes_and_home_of_a_killed_run_are_cleared_away_and_those_of_a_live_one_stay() -> None:
    without_home = {name: value for name, value in os.environ.items() if not name.startswith("OAKUM_")}
    environment = without_home | {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    with subprocess.Popen(
        [sys.executable, "-c", _RUN], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        home, started = json.loads(run.stdout.readline())
        list(clear_away())
        assert psutil.pid_exists(started)
        assert Path(home).exists()
        run.send_signal(signal.SIGKILL)
    list(clear_away())  # another run that begins just now may do it first
    assert not runs(started)
    assert not Path(home).exists()
