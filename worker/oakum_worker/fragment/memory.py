"""The memory that a rank and its node use, and the processes that the kernel has killed for lack of memory.

Read from cgroups of either version, /proc and the kernel's log. A number that cannot be read there is None.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC, _CGROUPS, _KERNEL_LOG = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/kmsg")
_UNLIMITED = 1 << 60
"""Bytes from which on a limit means none: cgroups of version 1 show a huge number where no limit is set."""
_MOST_OF_LOG = 10_000


@dataclass(frozen=True)
class Kills:
    """Numbers of processes that the kernel has killed for lack of memory, in the cgroup and on the whole node."""

    cgroup: int | None = None
    node: int | None = None

    def since(self, before: Kills) -> Kills:
        """How many more processes were killed at this count than at the earlier count `before`."""
        return Kills(_rise(before.cgroup, self.cgroup), _rise(before.node, self.node))


@dataclass(frozen=True)
class MemoryUse:
    """Memory of a rank, and the limit that it counts towards; in bytes."""

    rank_bytes: int
    """Resident memory of the rank's process, without processes that it has started."""
    used_bytes: int | None
    """Memory used by all processes that share the limit."""
    limit_bytes: int | None
    """Limit of the cgroup or, where no limit is set there, the node's memory."""
    is_cgroups: bool

    @property
    def is_short(self) -> bool:
        """Whether nearly all of the limit was in use."""
        return bool(self.used_bytes and self.limit_bytes and self.used_bytes > 0.9 * self.limit_bytes)


@dataclass(frozen=True)
class Cgroup:
    """The memory of the cgroup that this process is in."""

    folder: Path
    root: Path
    unified: bool
    """Whether the cgroup is of version 2."""

    def kills(self) -> int | None:
        """Number of processes in the cgroup that the kernel has killed for lack of memory; None if unknown."""
        return number_after(self.folder / ("memory.events" if self.unified else "memory.oom_control"), "oom_kill")

    def limit(self) -> tuple[int, int] | None:
        """(used, limit) in bytes of the cgroup with the lowest memory limit, among this one and those that contain
        it; None without a limit."""
        names = ("memory.current", "memory.max")
        if not self.unified:
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes")
        uses = [tuple(_number(folder / name) for name in names) for folder in self._folders()]
        limits = [(used, limit) for used, limit in uses if used is not None and limit is not None]
        return min((each for each in limits if each[1] < _UNLIMITED), key=lambda each: each[1], default=None)

    def _folders(self) -> Iterator[Path]:
        folder = self.folder
        while folder != self.root and folder != folder.parent:
            yield folder
            folder = folder.parent
        yield self.root


def own_cgroup(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Cgroup | None:
    """The cgroup whose memory this process's memory counts towards; None where no cgroup's files can be read."""
    for line in text_of(proc / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        unified = number == "0" and not controllers
        if not unified and "memory" not in controllers.split(","):
            continue
        root = cgroups if unified else cgroups / "memory"
        wanted = "memory.events" if unified else "memory.oom_control"
        # Within a container the path may be the host's; the container's own cgroup is then at the root.
        for folder in (root / path.lstrip("/"), root):
            if (folder / wanted).is_file():
                return Cgroup(folder, root, unified)
    return None


def kills(cgroup: Cgroup | None, proc: Path = _PROC) -> Kills:
    """The processes that the kernel has killed for lack of memory until now."""
    return Kills(None if cgroup is None else cgroup.kills(), number_after(proc / "vmstat", "oom_kill"))


def memory_of(pid: int, cgroup: Cgroup | None, proc: Path = _PROC) -> MemoryUse | None:
    """The memory that the process uses now; None where the process has ended."""
    rank_kb = number_after(proc / str(pid) / "status", "VmRSS:")
    if rank_kb is None:
        return None
    if cgroup is not None and (limit := cgroup.limit()) is not None:
        return MemoryUse(rank_kb << 10, *limit, is_cgroups=True)
    total_kb, free_kb = (number_after(proc / "meminfo", name) for name in ("MemTotal:", "MemAvailable:"))
    if total_kb is None or free_kb is None:
        return MemoryUse(rank_kb << 10, None, None, is_cgroups=False)
    return MemoryUse(rank_kb << 10, (total_kb - free_kb) << 10, total_kb << 10, is_cgroups=False)


def is_in_kernel_log(pid: int, log: Path = _KERNEL_LOG) -> bool:
    """Whether the kernel's log says that it has killed the process. Most users may not read it."""
    kill_line = re.compile(rf"Killed process {pid}\b|oom-kill:.*\bpid={pid}\b")
    with contextlib.suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            for _ in range(_MOST_OF_LOG):
                record = os.read(descriptor, 8192)
                if not record:
                    return False
                if kill_line.search(record.decode(errors="replace")):
                    return True
        finally:
            os.close(descriptor)
    return False


def _rise(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def text_of(file: Path) -> str:
    """The file's text; empty where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(file: Path) -> int | None:
    text = text_of(file).strip()
    return int(text) if text.isdigit() else None


def number_after(file: Path, name: str) -> int | None:
    """The number that follows `name` in a file with a name and a number on each line; None where it is missing."""
    for line in text_of(file).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
