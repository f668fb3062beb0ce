"""Samples that other processes read ahead of the steps: the cases of `tests/support/read_ahead_cases.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "support" / "read_ahead_cases.py"


def test_readers_of_a_process_of_their_own() -> None:
    """A rank forks its readers soon after its own start. This process has threads of earlier tests, among which a
    forked reader may crash."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "23 passed" in done.stdout
