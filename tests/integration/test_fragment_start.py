"""The moment between submitit's signal handlers and the agent's own."""

from __future__ import annotations

import subprocess
import sys

# Stands in for an agent module that takes long to import, during which the scheduler wants the node back.
_SCRIPT = """
import os, signal, sys, types

class Importing(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), signal.SIGTERM)
        return lambda *arguments: sys.exit("the agent was started all the same")

signal.signal(signal.SIGTERM, signal.SIG_IGN)
from oakum_worker.launch import run_fragment
sys.modules["oakum_worker.agent"] = Importing("oakum_worker.agent")
run_fragment(sys.argv[1])
"""


def test_a_fragment_that_is_told_to_go_while_it_imports_goes_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, "unused"], capture_output=True, timeout=30, check=False, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
