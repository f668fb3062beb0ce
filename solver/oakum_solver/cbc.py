"""CBC as a child process that can always be killed.

PuLP's own `COIN_CMD` waits for CBC without limit and leaves files behind when it is interrupted. So PuLP
writes the model and reads the solution, and the process is ours: in a process group of its own, killed as a
group when its time is up, its files in a folder that goes in any case.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pulp

from oakum_solver.errors import MilpError

_EXIT_MARGIN_S = 0.25
"""Left to CBC, out of its time, to notice its limit and write its best solution."""


@dataclass(frozen=True)
class MilpSolution:
    """What a solver found for a model, all in the model's own unit."""

    values: dict[str, float]
    """Variable name -> value."""
    optimal: bool
    bound: float | None
    """Proven bound on the objective; None where the solver named none."""


def find_cbc() -> str:
    """Path of the CBC that PuLP ships, or of the one on PATH. Raises `MilpError` where there is neither."""
    shipped = str(pulp.PULP_CBC_CMD.pulp_cbc_path)
    path = shipped if os.access(shipped, os.X_OK) else shutil.which("cbc")
    if path is None:
        raise MilpError(f"no CBC at {shipped} and none on PATH: install coinor-cbc")
    return path


def run_cbc(model: pulp.LpProblem, time_limit_s: float, gap: float = 0.0) -> MilpSolution:
    """Maximise `model`, a problem with integer variables, within `time_limit_s` seconds, to an absolute `gap`.

    Raises `MilpError` where CBC is missing, crashes, or has no solution when its time is up.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="oakum-cbc-", ignore_cleanup_errors=True) as folder:
            return _solve_in(Path(folder), model, time_limit_s, gap)
    except (OSError, pulp.PulpError) as error:
        raise MilpError(f"CBC cannot be run: {error}") from error


def _solve_in(folder: Path, model: pulp.LpProblem, time_limit_s: float, gap: float = 0.0) -> MilpSolution:
    model_file, solution_file = folder / "model.mps", folder / "model.sol"
    # Written as a minimisation, because CBC's log gives the bound of a maximisation with changing signs.
    variables, names, rows, _ = model.writeMPS(str(model_file), pulp.LpMinimize, rename=1)
    log = run_killable("CBC", _command(model_file, solution_file, time_limit_s, gap), folder, time_limit_s)
    try:
        status, values, *_, solution_status = pulp.COIN_CMD().readsol_MPS(
            str(solution_file), model, variables, names, rows
        )
    except (OSError, ValueError, IndexError) as error:
        raise MilpError(f"CBC left no readable solution ({error}); its last words: {log[-200:]!r}") from error
    if status != pulp.LpStatusOptimal:
        raise MilpError(f"CBC found no solution within {time_limit_s:.3g} s")
    return MilpSolution(values, solution_status == pulp.LpSolutionOptimal, _bound(log))


def _command(model_file: Path, solution_file: Path, time_limit_s: float, gap: float) -> list[str]:
    own_limit_s = max(time_limit_s - _EXIT_MARGIN_S, time_limit_s / 2)
    # No `-threads`: even with one, the CBC 2.10.3 that PuLP ships hangs in about one run of twenty.
    limits = ["-timeMode", "elapsed", "-sec", f"{own_limit_s:.3f}", "-ratio", "0", "-allow", f"{gap:.9g}"]
    output = ["-printingOptions", "all", "-solution", str(solution_file)]
    return [find_cbc(), str(model_file), *limits, "-solve", *output]


def run_killable(solver: str, command: list[str], folder: Path, time_limit_s: float) -> str:
    """Run a solver to its end or to the limit; what it printed.

    Raises `MilpError` where it fails or runs past its time; then its whole process group is killed.
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
    """End whatever is left of the process's group, also after an interrupt in the waiting."""
    # As long as the leader is not reaped its id stays taken: this never hits a stranger's group.
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _bound(log: str) -> float | None:
    """The bound of the maximisation, from the last lines of CBC's log of the minimisation."""
    found = re.findall(r"^Lower bound:\s+(\S+)$", log, re.MULTILINE)
    try:
        return -float(found[-1]) if found else None
    except ValueError:
        return None
