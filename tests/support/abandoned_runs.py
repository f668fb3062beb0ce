"""Clears away what test runs have left that were killed: their processes and their home folders.

Each run has a home folder of its own, named after its process, and all that its tests start inherits the variable
that names it. Slurm clusters and Unix accounts are cleared away where new ones are made.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from inherited_state import HOME_PREFIX, HOME_VARIABLE
from processes import kill_all, maker_is_gone


def clear_away() -> Iterator[str]:
    """End the processes of runs whose own process is gone, and remove their home folders; yields what was done."""
    for home in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        if maker_is_gone(home.name, HOME_PREFIX):
            left = list(_started_by_run(home))
            kill_all(left)
            shutil.rmtree(home, ignore_errors=True)
            yield f"cleared away what a killed run had left: {home}, processes: {len(left)}"


def _started_by_run(home: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(HOME_VARIABLE) == str(home):
                yield process
