"""Finds the processes of fragments on this machine, also those that an earlier life of the service started.

Every process of a fragment (submitit's controller, the agent, the ranks) is a Python module of ours or submitit's
with the fragment's folder in its command line; that is the whole record, and `kill -9` of the service cannot
lose it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

_MODULES = {"submitit.local._local", "submitit.core._submit", "oakum_worker.rank"}


def find(fragments_dir: Path) -> dict[str, list[psutil.Process]]:
    """Fragment id -> its live processes, the oldest first."""
    prefix = f"{fragments_dir}/"
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline", "create_time", "status"]):
        if process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        command = process.info["cmdline"] or ()
        if not _MODULES.intersection(command):
            continue  # someone looks at a fragment's log, say
        for argument in command:
            if argument.startswith(prefix):
                fragment = argument.removeprefix(prefix).split("/", 1)[0]
                found.setdefault(fragment, []).append(process)
                break
    for processes in found.values():
        processes.sort(key=lambda process: float(process.info["create_time"]))
    return found


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Signal processes; those that have ended meanwhile are not an error."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
