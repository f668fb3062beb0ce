"""Clears away what test runs have left that were killed: their processes and their folders.

Each run has a home folder of its own, and all that its tests start inherits the variable that names it. The run's
process holds a lock beside the folder, which says whether the run lives: the process's number may be another one's
by then, or be counted in another container.

Slurm clusters and Unix accounts name the run that they are of, and are cleared away where new ones are made.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from inherited_state import HOME_VARIABLE, LOCK, RUN_PREFIX, folder_of_run
from processes import kill_all

_DRAWN = "[a-z0-9_]{8}"
"""Pattern of the random part of a name that `mkdtemp` makes."""


def make_folder(prefix: str) -> Path:
    """A new folder that every account may enter. Its name contains that of this test run, by which a later run can
    tell that it was left behind."""
    run = folder_of_run().name.removeprefix(RUN_PREFIX)
    folder = Path(tempfile.mkdtemp(prefix=f"{prefix}{run}-"))
    folder.chmod(0o755)
    return folder


def abandoned_folders(prefix: str) -> Iterator[Path]:
    """The folders that `make_folder` has made with this prefix for runs that are over."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        named = re.fullmatch(rf"{prefix}({_DRAWN})-{_DRAWN}", folder.name)  # others are not of tests
        if named and is_over(folder.with_name(RUN_PREFIX + named[1])):
            yield folder


def is_over(run: Path) -> bool:
    """Whether the run with this folder has ended, or was killed; False if it is another user's."""
    if run == folder_of_run():  # to close any descriptor of a file that one has locked is to give the lock up
        return False
    try:
        with (run / LOCK).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def clear_away() -> Iterator[str]:
    """End the processes of runs whose own process is gone, and remove their folders; yields what was done."""
    for lock in Path(tempfile.gettempdir()).glob(f"{RUN_PREFIX}*/{LOCK}"):
        run = lock.parent
        if is_over(run):
            left = list(_started_by_run(run / "home"))
            kill_all(left)
            shutil.rmtree(run, ignore_errors=True)
            yield f"cleared away what a killed run had left: {run}, processes: {len(left)}"


def _started_by_run(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(HOME_VARIABLE) == str(home):
                yield process
