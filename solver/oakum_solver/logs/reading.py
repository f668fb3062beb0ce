"""Reads any supported log; the file's name tells its format."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from oakum_solver.errors import LogError
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import read_idle_log
from oakum_solver.logs.machine import Placement, Progress
from oakum_solver.logs.placement import Maintenance, read_swf_holes


def read_log(
    path: Path,
    *,
    nodes: int | None = None,
    procs_per_node: int | None = None,
    placement: Placement = "first",
    easy: bool = False,
    turnover_s: float = 0.0,
    maintenance: Maintenance = "cut",
    progress: Progress | None = None,
) -> HoleLog:
    """The holes of an SWF log or of an idle log. `read_swf_holes` explains the options.

    They do not apply to an idle log, where the notes name each option that was given.
    Raises `LogError` where the file's name or content is not that of a supported log.
    """
    name = path.name.lower()
    if name.endswith((".swf", ".swf.gz")):
        return read_swf_holes(
            path, nodes, procs_per_node, placement, easy, turnover_s, maintenance, progress=progress
        )
    if not name.endswith((".csv", ".csv.gz")):
        raise LogError(f"{path}: expected a name in .swf, .swf.gz (jobs), .csv or .csv.gz (idle log)")
    log = read_idle_log(path)
    is_given_by_option = {
        "the number of nodes": nodes is not None,
        "processors per node": procs_per_node is not None,
        "the placement": placement != "first",
        "EASY backfilling": easy,
        "the turnover time": turnover_s != 0.0,
    }
    unused = ", ".join(option for option, is_given in is_given_by_option.items() if is_given)
    return (
        replace(log, notes=(*log.notes, f"an idle log lists the holes itself: {unused} not used"))
        if unused
        else log
    )
