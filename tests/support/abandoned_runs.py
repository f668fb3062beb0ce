"""Clears away what test runs have left that were killed: their processes and their folders.

Each run has a home folder of its own, and all that its tests start inherits the variable that names it. The run's
process holds a lock beside the folder, which says whether the run lives: the process's number may be another one's
by then, or be counted in another container.

Slurm clusters and Unix accounts are cleared away where new ones are made.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from inherited_state import HOME_VARIABLE, LOCK, RUN_PREFIX
from processes import kill_all


def clear_away() -> Iterator[str]:
    """End the processes of runs whose own process is gone, and remove their folders; yields what was done."""
    for lock in Path(tempfile.gettempdir()).glob(f"{RUN_PREFIX}*/{LOCK}"):
        home = lock.parent / "home"
        # To close any descriptor of a file that one has locked is to give the lock up.
        if os.environ.get(HOME_VARIABLE) != str(home) and _is_free(lock):
            left = list(_started_by_run(home))
            kill_all(left)
            shutil.rmtree(lock.parent, ignore_errors=True)
            yield f"cleared away what a killed run had left: {lock.parent}, processes: {len(left)}"


def _is_free(lock: Path) -> bool:
    """Whether nobody holds the lock; False, too, if it is another user's, or another run has cleared it away."""
    try:
        with lock.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _started_by_run(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(HOME_VARIABLE) == str(home):
                yield process
