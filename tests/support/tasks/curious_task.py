"""A task that looks at what its account may read, and trains as `small_task` does."""

from __future__ import annotations

import json
import os
from pathlib import Path

import small_task

from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


def task(spec: TrainerSpec, report: str, paths: list[str], gate: str) -> Task:
    """Write into the folder `report` who this process is, what it may read of `paths`, and its environment. A step
    takes a second until there is a file `gate`."""
    told = {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "environment": dict(os.environ),
        "read": {path: _reads(Path(path)) for path in paths},
    }
    Path(report, f"{spec.name}-{os.getpid()}.json").write_text(json.dumps(told), encoding="utf-8")
    return small_task.paced_task(spec, gate, step_s=1.0)


def _reads(path: Path) -> str:
    try:
        if path.is_dir():
            return f"{len(list(path.iterdir()))} entries"
        return f"{len(path.read_bytes())} bytes"
    except OSError as error:
        return type(error).__name__
