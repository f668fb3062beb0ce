"""CBC as a child process that can always be killed.

PuLP's own `COIN_CMD` waits for CBC without a limit and leaves files behind when it is interrupted. So PuLP only
writes the model and reads the solution; `solver_process` runs CBC, in a folder that is removed in any case.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pulp

from oakum_solver.errors import MilpError
from oakum_solver.solver_process import MilpSolution, run_killable

_EXIT_MARGIN_S = 0.25
"""Left to CBC, out of its time, to notice its limit and write its best solution."""


def find_cbc() -> str:
    """Path of the CBC that PuLP ships, or of the one on PATH. Raises `MilpError` where there is neither."""
    shipped = str(pulp.PULP_CBC_CMD.pulp_cbc_path)
    path = shipped if os.access(shipped, os.X_OK) else shutil.which("cbc")
    if path is None:
        raise MilpError(f"no CBC at {shipped} and none on PATH: install coinor-cbc")
    return path


def run_cbc(model: pulp.LpProblem, time_limit_s: float, gap: float = 0.0) -> MilpSolution:
    """Solve `model`, a maximisation with integer variables, by CBC within `time_limit_s` seconds; the search
    may stop at the absolute gap `gap`. Raises `MilpError` where CBC is missing, crashes, or has no solution
    when its time is up. Returns the best solution found, with a bound."""
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


def _bound(log: str) -> float | None:
    """The proven bound on the maximisation, read from the last such line of CBC's log (CBC minimises); None where
    the log has none."""
    bounds = re.findall(r"^Lower bound:\s+(\S+)$", log, re.MULTILINE)
    try:
        return -float(bounds[-1]) if bounds else None
    except ValueError:
        return None
