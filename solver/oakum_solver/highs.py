"""Runs HiGHS on a model, in a child process: a crash in its library costs a better plan and nothing else."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pulp

from oakum_solver.errors import MilpError
from oakum_solver.solver_process import MilpSolution, run_killable

_EXIT_MARGIN_S = 0.25
"""Seconds of the time limit kept for the process to start and to write its best solution."""


def run_highs(model: pulp.LpProblem, time_limit_s: float, gap: float = 0.0) -> MilpSolution:
    """Solve `model`, a maximisation with integer variables, by HiGHS within `time_limit_s` seconds; the search
    may stop at the absolute gap `gap`. Raises `MilpError` where highspy is missing, HiGHS crashes, or has no
    solution when its time is up. Returns the best solution found, with a bound."""
    try:
        with tempfile.TemporaryDirectory(prefix="oakum-highs-", ignore_cleanup_errors=True) as folder:
            return _solve_in(Path(folder), model, time_limit_s, gap)
    except (OSError, pulp.PulpError) as error:
        raise MilpError(f"HiGHS cannot be run: {error}") from error


def _solve_in(folder: Path, model: pulp.LpProblem, time_limit_s: float, gap: float) -> MilpSolution:
    model_file, solution_file = folder / "model.mps", folder / "solution.json"
    _, names, _, _ = model.writeMPS(str(model_file), pulp.LpMinimize, rename=1)
    own_limit_s = max(time_limit_s - _EXIT_MARGIN_S, time_limit_s / 2)
    command = [
        sys.executable,
        "-P",
        "-m",
        "oakum_solver.highs_child",
        str(model_file),
        str(solution_file),
        f"{own_limit_s:.3f}",
        f"{gap:.9g}",
    ]
    log = run_killable("HiGHS", command, folder, time_limit_s)
    try:
        answer = json.loads(solution_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MilpError(f"HiGHS left no readable solution ({error}); its last words: {log[-200:]!r}") from error
    if answer["values"] is None:
        raise MilpError(f"HiGHS found no solution within {time_limit_s:.3g} s: {answer['status']}")
    values = {name: answer["values"].get(short, 0.0) for name, short in names.items()}
    return MilpSolution(values, answer["optimal"], answer["bound"])
