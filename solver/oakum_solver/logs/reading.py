"""Reads any supported log; the file's name tells its format, or how it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from oakum_solver.errors import LogError
from oakum_solver.logs.acme import is_acme, read_acme
from oakum_solver.logs.files import open_log
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.idle import read_idle_log
from oakum_solver.logs.machine import Placement, Progress
from oakum_solver.logs.philly import is_philly, read_philly
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
    """The holes of an SWF log, of an idle log, or of the logs of Philly and Acme. `read_swf_holes` explains the
    options; GPUs of a node are its processors.

    Of those that do not apply to a log the notes name each that was given.
    Raises `LogError` where the file's name or content is not that of a supported log.
    """
    name = path.name.lower()
    if name.endswith((".swf", ".swf.gz")):
        return read_swf_holes(
            path, nodes, procs_per_node, placement, easy, turnover_s, maintenance, progress=progress
        )
    given = {
        "the number of nodes": nodes is not None,
        "processors per node": procs_per_node is not None,
        "the placement": placement != "first",
        "EASY backfilling": easy,
    }
    with open_log(path) as file:
        beginning = file.read(_PEEKED)
    if name.endswith((".csv", ".csv.gz")):
        if is_acme(beginning.decode(errors="replace").partition("\n")[0]):
            log = read_acme(path, nodes, procs_per_node, turnover_s, maintenance, progress)
            return _without(log, "jobs are packed", {option: given[option] for option in _OF_WHOLE_NODES})
        given["the turnover time"] = turnover_s != 0.0
        return _without(read_idle_log(path), "an idle log lists the holes itself", given)
    if not is_philly(beginning):
        raise LogError(
            f"{path}: expected a name in .swf, .swf.gz (jobs), .csv or .csv.gz (idle log), or Philly's "
            "cluster_job_log, which begins with ["
        )
    log = read_philly(path, turnover_s, maintenance == "cut")
    return _without(log, "the log says where jobs ran", given)


_PEEKED = 1024
_OF_WHOLE_NODES = ("the placement", "EASY backfilling")


def _without(log: HoleLog, why: str, is_given_by_option: Mapping[str, bool]) -> HoleLog:
    """The log with a note on the options that were given and have no part in it."""
    unused = ", ".join(option for option, is_given in is_given_by_option.items() if is_given)
    return replace(log, notes=(*log.notes, f"{why}: {unused} not used")) if unused else log
