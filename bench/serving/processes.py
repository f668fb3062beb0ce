"""CPU time and memory of the service and of what runs beside it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

import psutil

_MIB = 2**20


@dataclass
class Watched:
    """What processes have used, sampled again and again: each by its role."""

    service: psutil.Process
    database: psutil.Process | None = None
    """PostgreSQL's first process; None on SQLite."""
    memory_mib: list[tuple[float, float]] = field(default_factory=list)
    """(seconds since the beginning, resident MiB of the service's process)"""
    _began_s: float = field(default_factory=time.monotonic)
    _used: dict[tuple[str, int], float] = field(default_factory=dict)
    """(role, pid) -> its CPU-seconds when it was last seen."""
    _before: dict[tuple[str, int], float] = field(default_factory=dict)

    def begin(self) -> None:
        """Count from now on."""
        self._began_s = time.monotonic()
        self.memory_mib.clear()
        self._used.clear()
        self._before.clear()
        self._look()
        self._before = dict(self._used)

    def sample(self) -> None:
        """Look at all processes. Those that come and go between two looks are not counted."""
        self._look()
        with_memory = self.service.memory_info().rss / _MIB
        self.memory_mib.append((round(time.monotonic() - self._began_s, 1), round(with_memory, 1)))

    def _look(self) -> None:
        self._note("load generator", psutil.Process())
        self._note("service", self.service)
        for process in _below(self.service):
            self._note("the trainer's processes", process)
        if self.database is not None:
            for process in [self.database, *_below(self.database)]:
                self._note("PostgreSQL", process)

    def _note(self, role: str, process: psutil.Process) -> None:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            return
        self._used[role, process.pid] = times.user + times.system

    def cores(self) -> dict[str, float]:
        """Role -> the cores that its processes have kept busy on average."""
        seconds = time.monotonic() - self._began_s
        roles: dict[str, float] = {}
        for key, used_s in self._used.items():
            roles[key[0]] = roles.get(key[0], 0.0) + used_s - self._before.get(key, 0.0)
        return {role: round(used_s / seconds, 2) for role, used_s in roles.items()}

    def memory_by_minute(self) -> list[float]:
        """Resident MiB of the service at the end of each minute, and at the end."""
        last: dict[int, float] = {}
        for at_s, size in self.memory_mib:
            last[int(at_s // 60)] = size
        return list(last.values())


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def load_of_machine() -> float:
    """Processes that wanted a core in the last minute, on average."""
    return round(os.getloadavg()[0], 1)
