"""Reads from /proc how much of a node's processors and memory is in use, and by which processes.

A number that cannot be read there is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from oakum_worker.fragment.memory import number_after, text_of
from oakum_worker.protocol import NodeUse

_PROC = Path("/proc")
_MOST_PROCESSES = 1_000
"""Of a fragment that are looked at: a task with more has made them by mistake."""


@dataclass(frozen=True)
class ProcessorTimes:
    """Ticks of the kernel's clock that processors have been busy until one moment."""

    at_s: float
    """The moment, on the monotonic clock."""
    busy: int | None
    """Of all processors of the node."""
    own: dict[int, int] = field(default_factory=dict)
    """Process -> what it has computed."""


class UseReader:
    """Reads the use of the node, each time since the time before."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._before: ProcessorTimes | None = None

    def read(self, roots: Iterable[int]) -> NodeUse | None:
        """The use since the last call, and the part of the processes `roots` and of those that they have begun;
        None at the first call."""
        processes = list(_with_children(roots, self._proc))
        before, now = self._before, self._times(processes)
        self._before = now
        if before is None or now.at_s <= before.at_s:
            return None
        memory_kb, free_kb = (
            number_after(self._proc / "meminfo", name) for name in ("MemTotal:", "MemAvailable:")
        )
        own_kb = [number_after(self._proc / str(pid) / "status", "RssAnon:") or 0 for pid in now.own]
        seconds = now.at_s - before.at_s
        return NodeUse(
            cores=self._num_cores(),
            busy_cores=None
            if before.busy is None or now.busy is None
            else self._cores(now.busy - before.busy, seconds),
            # A process that has begun since counts with all that it has computed.
            own_cores=self._cores(
                sum(max(0, own - before.own.get(pid, 0)) for pid, own in now.own.items()), seconds
            ),
            memory_bytes=None if memory_kb is None else memory_kb << 10,
            used_bytes=None if memory_kb is None or free_kb is None else max(0, memory_kb - free_kb) << 10,
            own_bytes=sum(own_kb) << 10,
        )

    def _cores(self, ticks: int, seconds: float) -> float:
        return max(0, ticks) / self._ticks_per_s / seconds

    def _num_cores(self) -> int | None:
        lines = text_of(self._proc / "stat").splitlines()
        return sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines) or None

    def _times(self, processes: Iterable[int]) -> ProcessorTimes:
        return ProcessorTimes(
            time.monotonic(),
            _busy_ticks(text_of(self._proc / "stat")),
            {pid: ticks for pid in processes if (ticks := _ticks_of(self._proc / str(pid) / "stat")) is not None},
        )


def _busy_ticks(stat: str) -> int | None:
    """Ticks that all processors together were neither idle nor waiting for a disk; guests are in the user's."""
    words = stat.partition("\n")[0].split()
    if len(words) < 8 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:8]):
        return None
    user, nice, system, _idle, _waiting, *interrupts = (int(word) for word in words[1:8])
    return user + nice + system + sum(interrupts)


def _ticks_of(stat: Path) -> int | None:
    """Ticks that a process has computed; None where it has ended."""
    words = text_of(stat).rpartition(")")[2].split()  # the command's name may hold blanks
    return int(words[11]) + int(words[12]) if len(words) > 12 else None


def _with_children(roots: Iterable[int], proc: Path) -> Iterator[int]:
    """The processes and, where the kernel tells, those that they have begun, and so on: each once."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting and len(seen) < _MOST_PROCESSES:
        pid = waiting.pop()
        if pid in seen:
            continue
        seen.add(pid)
        yield pid
        for children in (proc / str(pid) / "task").glob("*/children"):
            waiting.extend(int(word) for word in text_of(children).split())
