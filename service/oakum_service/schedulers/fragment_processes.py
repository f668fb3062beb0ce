"""Finds fragments' processes on this machine, including those that an earlier process of the service started.

Each process of a fragment (submitit's controller, the agent, its fork server, the ranks) is a Python module of
ours or of submitit with the fragment's folder in its command line. Nothing else is recorded, so `kill -9` of the
service loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil

AGENT_MODULES = {"submitit.core._submit", "oakum_worker.payload"}
"""The module that an agent's command line shows: the first as a process of its own, the second when it was
forked."""
_MODULES = AGENT_MODULES | {
    "submitit.local._local",
    "oakum_worker.fragment.fork_server",
    "oakum_worker.rank.process",
}


def find(fragments_dir: Path) -> dict[str, list[psutil.Process]]:
    """Fragment id -> its live processes, the oldest first. Those of other accounts are none: they may show any
    command line, and cannot be signalled."""
    prefix, own = f"{fragments_dir}/", os.getuid()
    by_fragment: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter(["cmdline", "uids"]):
        command = process.info["cmdline"] or ()
        if process.info["uids"] is None or process.info["uids"].real != own:
            continue
        if not _MODULES.intersection(command):
            continue  # another program with such an argument, such as a viewer of the fragment's log
        for argument in command:
            if argument.startswith(prefix) and _lives(process):
                fragment = argument.removeprefix(prefix).split("/", 1)[0]
                by_fragment.setdefault(fragment, []).append(process)
                break
    for processes in by_fragment.values():
        processes.sort(key=lambda process: float(process.create_time()))
    return by_fragment


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to the processes; one that has ended meanwhile is not an error."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
