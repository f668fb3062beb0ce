"""The child process that runs HiGHS; it starts anew for every model, so it imports little."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import highspy


def _main(model_file: str, solution_file: str, time_limit_s: str, gap: str) -> None:
    """Solve the minimisation in `model_file` and write status, values and bound as JSON to `solution_file`."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("mip_rel_gap", 0.0)
    solver.setOptionValue("mip_abs_gap", float(gap))
    solver.setOptionValue("time_limit", float(time_limit_s))
    solver.readModel(model_file)
    solver.run()
    status, info = solver.getModelStatus(), solver.getInfo()
    values = None
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        columns = solver.getLp().col_names_
        values = dict(zip(columns, solver.getSolution().col_value, strict=True))
    bound = -info.mip_dual_bound if abs(info.mip_dual_bound) < highspy.kHighsInf else None
    document = {
        "status": solver.modelStatusToString(status),
        "optimal": status == highspy.HighsModelStatus.kOptimal,
        "values": values,
        "bound": bound,
    }
    Path(solution_file).write_text(json.dumps(document), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
