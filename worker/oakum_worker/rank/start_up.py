"""The seconds that each stage takes until a rank is ready, as a line in its log."""

from __future__ import annotations

import os
import time
from pathlib import Path


class StartUp:
    """Measures the consecutive stages of a process's start. The start itself is the kernel's, which tells it to 10
    ms."""

    def __init__(self) -> None:
        self._began_s = self._ended_s = _began_s()
        self._stages: list[str] = []

    def ended(self, stage: str) -> None:
        """Note that `stage` has ended now; it began when the stage before it ended, the first one when the process
        began."""
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._stages.append(f"{stage} {now_s - self._ended_s:.2f}")
        self._ended_s = now_s

    def __str__(self) -> str:
        """A line with the seconds until ready, the CPU seconds, and the seconds of each stage."""
        taken_s = self._ended_s - self._began_s
        return f"ready after {taken_s:.2f} s, {time.process_time():.2f} CPU-s: {', '.join(self._stages)}"


def _began_s() -> float:
    """When this process began, in seconds since the machine's boot."""
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
