"""Whether processes that a test has started, or made others start, are gone."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil


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


def kill_all(found: Iterable[psutil.Process]) -> None:
    """`kill -9` each that has not ended since it was found."""
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
