"""Finds and ends the processes of a cluster."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_cluster.errors import ClusterError

_END_WITHIN_S = 20.0


def of_mark(mark: str) -> dict[int, str]:
    """Process id -> program of every process in a mount namespace of the cluster: daemons, steps and jobs.

    The file mounted over their /etc/hosts identifies them: unlike parent, environment or title, it cannot change.
    """
    wanted = mark.encode()
    namespaces: dict[str, bool] = {}
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            namespace = str((folder / "ns" / "mnt").readlink())
            if namespace not in namespaces:
                namespaces[namespace] = wanted in (folder / "mountinfo").read_bytes()
            if namespaces[namespace] and not _is_dead(folder):
                found[int(folder.name)] = (folder / "comm").read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return found


def _is_dead(folder: Path) -> bool:
    return (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"


def kill(pids: Iterable[int], by: signal.Signals = signal.SIGKILL) -> None:
    """Send the signal `by` to each process and return when all have ended."""
    remaining = set(pids)
    for pid in remaining:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, by)
    deadline_s = time.monotonic() + _END_WITHIN_S
    while remaining := {pid for pid in remaining if _lives(pid)}:
        if time.monotonic() > deadline_s:
            raise ClusterError(
                f"processes {sorted(remaining)} do not end: they wait for a device or a file system"
            )
        time.sleep(0.01)


def kill_mark(mark: str) -> None:
    """Kill every process of the cluster, including those that start meanwhile."""
    deadline_s = time.monotonic() + _END_WITHIN_S
    while pids := of_mark(mark):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"processes keep coming back: {pids}")
        kill(pids)


def _lives(pid: int) -> bool:
    try:
        # An ended child process stays in the process table until it is waited for.
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    try:
        return not _is_dead(Path(f"/proc/{pid}"))
    except OSError:
        return False
