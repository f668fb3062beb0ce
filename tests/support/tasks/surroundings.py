"""A task that notes what it finds around it before it is built."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from small_task import task as small_task

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def _descriptors() -> list[str]:
    """The open descriptors by kind (`pipe:`, `socket:`, a file's suffix), without the one that listing them
    opens."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = entry.readlink()
        except FileNotFoundError:
            continue
        found.append(target.suffix or str(target).partition("[")[0])
    return sorted(found)


def surroundings() -> dict[str, Any]:
    """What a process can see of the way in which it was started."""
    return {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "import path": sys.path,
        "arguments": sys.argv[1:],
        "descriptors": _descriptors(),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgrp()],
        "ignored": sorted(number for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN),
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "threads": torch.get_num_threads(),
        "unbuffered": sys.stdout.write_through,
    }


def task(spec: TrainerSpec, folder: str) -> Task:
    """The small task, beside a note by each process that builds it."""
    Path(folder, f"{os.getpid()}.json").write_text(json.dumps(surroundings()), encoding="utf-8")
    return small_task(spec)
