"""A MILP solver as a child process in a process group of its own, which is killed when its time is up."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from oakum_solver.errors import MilpError


@dataclass(frozen=True)
class MilpSolution:
    """What a solver found for a model; values and bound are in the model's own unit."""

    values: dict[str, float]
    """Variable name -> value."""
    optimal: bool
    bound: float | None
    """Proven bound on the objective; None where the solver named none."""


def run_killable(solver: str, command: list[str], folder: Path, time_limit_s: float) -> str:
    """Run a solver in `folder` for at most `time_limit_s` seconds and return what it printed.

    `solver` is the name that errors tell. Raises `MilpError` when the solver fails or runs past its time; its
    whole process group is killed then.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        log, _ = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired as error:
        raise MilpError(f"{solver} ran past its {time_limit_s:.3g} s and was killed") from error
    finally:
        _kill_group(process)
    if process.returncode != 0:
        raise MilpError(f"{solver} ended with status {process.returncode}; its last words: {log[-200:]!r}")
    return log


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Kill the process with its whole group, if it still runs, and wait for its end."""
    # The kernel gives out the id of a process again only after the process is reaped: no other group is killed.
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
