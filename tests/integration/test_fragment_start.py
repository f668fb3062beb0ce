"""The moment between submitit's signal handlers and the agent's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Stands in for an agent module that takes long to import, during which the scheduler wants the node back.
_SCRIPT = """
import os, signal, sys, types

number = signal.Signals[sys.argv[1]]

class Importing(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), number)
        return lambda *arguments: sys.exit("the agent was started all the same")

signal.signal(number, signal.SIG_IGN)
before = set(sys.modules)
from oakum_worker.payload import run_fragment
print(*sorted(set(sys.modules) - before - {"__future__"}), flush=True)
sys.modules["oakum_worker.agent"] = Importing("oakum_worker.agent")
run_fragment("unused")
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR2"])
def test_a_fragment_that_is_told_to_go_while_it_imports_goes_at_once(name: str) -> None:
    """And nearly nothing is imported before it can be told."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, name], capture_output=True, timeout=30, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["oakum_worker", "oakum_worker.payload"]
