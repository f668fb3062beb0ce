"""Whether processes that a test has started, or made others start, are gone."""

from __future__ import annotations

import os
import time
from pathlib import Path


def runs(pid: int, patience_s: float = 10.0) -> bool:
    """False once the process is gone, or dead and waiting for its parent to notice."""
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        os.sched_yield()
    return True


def any_runs(pids: Path) -> bool:
    """Whether any of the processes whose numbers the file names still runs."""
    numbers = [int(word) for word in pids.read_text().split()]
    assert numbers, "no process was started"
    return any(runs(pid) for pid in numbers)
