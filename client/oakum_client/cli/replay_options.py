"""The options of `oakum replay`, one group for each panel of its help page."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from oakum_solver.logs.holes import HoleLog
    from oakum_solver.replay.settings import ReplaySettings
    from oakum_solver.replay.workload import Workload

_PAPER = "paper"
_SLURM = Path("slurm")
_SINCE = "30d"
_log_option = partial(typer.Option, rich_help_panel="The log")
_trainer_option = partial(typer.Option, rich_help_panel="The trainers")
_planner_option = partial(typer.Option, rich_help_panel="The planner")
_output_option = partial(typer.Option, rich_help_panel="Output")


@dataclass(frozen=True)
class LogOptions:
    """Which log is replayed, and how it is read."""

    log: Annotated[
        Path,
        typer.Argument(
            help="Idle log (.csv: node,start_s,end_s) or jobs (.swf), also .gz; or the word `slurm`: from sacct.",
            show_default=False,
        ),
    ]
    since: Annotated[
        str | None,
        _log_option(metavar="30d", help="With `slurm`: how far back: 36h, 30d, 8w; by default 30d."),
    ] = None
    nodes: Annotated[
        int | None, _log_option(min=1, help="Nodes of the machine; by default as the SWF header says.")
    ] = None
    procs_per_node: Annotated[
        int | None, _log_option(min=1, help="Processors of a node; by default as the SWF header says.")
    ] = None
    placement: Annotated[
        Literal["first", "fifo"],
        _log_option(help="A job of an SWF log takes the lowest-numbered or longest-free nodes."),
    ] = "first"
    easy: Annotated[
        bool, _log_option("--easy", help="Schedule the jobs anew: first come first served, backfill.")
    ] = False
    turnover: Annotated[
        float, _log_option(min=0, help="Seconds after each job for which its nodes are not usable.")
    ] = 0.0
    keep_maintenance: Annotated[
        bool, _log_option("--keep-maintenance", help="Keep stretches in which the machine is nearly empty.")
    ] = False
    from_hours: Annotated[float, _log_option("--from", min=0, help="Hours to skip at the log's beginning.")] = 0.0
    hours: Annotated[float | None, _log_option(min=0, help="Hours to replay; by default all.")] = None

    def __post_init__(self) -> None:
        _check_finite({"--turnover": self.turnover, "--from": self.from_hours, "--hours": self.hours})
        if self.since is not None and not self.is_slurm:
            raise typer.BadParameter("--since goes with `oakum replay slurm`; a file has --from and --hours")
        _span_s(self.since or _SINCE)

    @property
    def is_slurm(self) -> bool:
        """Whether the log is Slurm's own accounting."""
        return self.log == _SLURM

    def read(self, progress: Callable[[float], None]) -> HoleLog:
        """Read the log's holes in the hours that are to be replayed. `progress` is called with the share read,
        from 0 to 1. Raises `LogError` if the log cannot be read."""
        holes = self._read_slurm() if self.is_slurm else self._read_file(progress)
        if not self.from_hours and self.hours is None:
            return holes
        end_hours = math.inf if self.hours is None else self.from_hours + self.hours
        return holes.between(3600 * self.from_hours, 3600 * end_hours)

    def _read_slurm(self) -> HoleLog:
        from oakum_service.config import Settings
        from oakum_service.schedulers.slurm.accounting_log import read_accounting

        until = time.time()
        return read_accounting(Settings().slurm, until - _span_s(self.since or _SINCE), until)

    def _read_file(self, progress: Callable[[float], None]) -> HoleLog:
        from oakum_solver.logs.reading import read_log

        return read_log(
            self.log,
            nodes=self.nodes,
            procs_per_node=self.procs_per_node,
            placement=self.placement,
            easy=self.easy,
            turnover_s=self.turnover,
            maintenance="keep" if self.keep_maintenance else "cut",
            progress=progress,
        )


@dataclass(frozen=True)
class TrainerOptions:
    """Which trainers use the holes, and what a rescale costs them."""

    workload: Annotated[
        str, _trainer_option(metavar="FILE|paper", help="Trainers, as JSON, or the seven published curves.")
    ] = _PAPER
    trainers: Annotated[
        int | None, _trainer_option(min=1, help="With `paper`: number of trainers, by default 7.")
    ] = None
    finite: Annotated[
        bool, _trainer_option("--finite", help="With `paper`: each trainer ends after 1.3e8 samples.")
    ] = False
    max_trainers: Annotated[
        int | None, _trainer_option(min=1, help="Most trainers at once, first come first served.")
    ] = None
    cost: Annotated[Literal["paper", "in-place", "none"], _trainer_option(help="What a rescale costs.")] = "paper"
    stall: Annotated[
        float, _trainer_option(min=0, help="With `in-place`: seconds for which a rescale stops a trainer.")
    ] = 1.0
    startup: Annotated[
        float, _trainer_option(min=0, help="With `in-place`: seconds that a node takes to start up.")
    ] = 20.0

    def __post_init__(self) -> None:
        _check_finite({"--stall": self.stall, "--startup": self.startup})
        if self.workload_file is not None and (self.trainers is not None or self.finite):
            raise typer.BadParameter("--trainers and --finite go with --workload paper; a file says it itself")

    @property
    def workload_file(self) -> Path | None:
        """The file that names the trainers; None for the published curves."""
        return None if self.workload == _PAPER else Path(self.workload)

    def read_workload(self) -> Workload:
        """The trainers to replay. Raises `SolverError` if their file cannot be read."""
        from oakum_solver.replay.workload import paper_workload, read_workload

        if self.workload_file is not None:
            return read_workload(self.workload_file)
        endless = not self.finite
        return paper_workload(endless=endless) if self.trainers is None else paper_workload(self.trainers, endless)


@dataclass(frozen=True)
class PlannerOptions:
    """How `oakum replay` plans: policy, objective, solver and limits."""

    policy: Annotated[Literal["milp", "greedy", "equal-share"], _planner_option(help="How nodes are granted.")] = (
        "milp"
    )
    objective: Annotated[
        str, _planner_option(help="throughput, speedup, weighted, fair-share, deadline or an expression.")
    ] = "speedup"
    look_ahead: Annotated[
        float | None,
        _planner_option(
            min=0,
            help="Seconds over which a plan counts its gains; by default a tenth of the time for which idle "
            "nodes are "
            "expected to stay idle.",
        ),
    ] = None
    solver: Annotated[Literal["cbc", "highs"], _planner_option(help="The MILP solver.")] = "cbc"
    time_limit: Annotated[float, _planner_option(min=0, help="Time limit for one plan, in seconds.")] = 5.0
    groups: Annotated[
        bool,
        _planner_option(
            "--groups/--no-groups", help="Forecast the holes' ends, and plan for nodes that may leave together."
        ),
    ] = False
    guard: Annotated[
        float | None,
        _planner_option(min=0, help="Guarantee nodes to trainers that have waited this many seconds."),
    ] = None
    user_cap: Annotated[int | None, _planner_option(min=1, help="Most nodes for one user's trainers.")] = None
    published: Annotated[
        bool,
        _planner_option("--published", help="Plan by the published objective, without the terms added to it."),
    ] = False

    def __post_init__(self) -> None:
        _check_finite({"--look-ahead": self.look_ahead, "--time-limit": self.time_limit, "--guard": self.guard})


@dataclass(frozen=True)
class OutputOptions:
    """Which files `oakum replay` writes, and in which form it prints the result."""

    report: Annotated[Path | None, _output_option(help="Write a page with charts (.html).")] = None
    steps: Annotated[Path | None, _output_option(help="Write a row for each plan (.csv).")] = None
    as_json: Annotated[bool, _output_option("--json", help="Print one JSON object.")] = False


def replay_settings(trainers: TrainerOptions, planner: PlannerOptions) -> ReplaySettings:
    """Make the replay engine's settings from the options. Raises `SolverError` for an objective that cannot be
    read."""
    from oakum_solver.guard import StarvationGuard
    from oakum_solver.objectives import parse_objective
    from oakum_solver.replay.costs import CostModel
    from oakum_solver.replay.settings import ReplaySettings

    return ReplaySettings(
        objective=parse_objective(planner.objective),
        look_ahead_s=planner.look_ahead,
        cost=CostModel(trainers.cost),
        stall_s=trainers.stall,
        startup_s=trainers.startup,
        max_trainers=trainers.max_trainers,
        policy=planner.policy,
        groups=planner.groups,
        published=planner.published,
        milp_solver=planner.solver,
        time_limit_s=planner.time_limit,
        user_cap=planner.user_cap,
        guard=StarvationGuard() if planner.guard is None else StarvationGuard(wait_s=planner.guard),
    )


def _span_s(text: str) -> float:
    """The seconds in `36h`, `30d` or `8w`."""
    match = re.fullmatch(r"([1-9]\d{0,4})([hdw])", text, re.ASCII)
    if match is None:
        raise typer.BadParameter(f"--since is {text!r}: give hours, days or weeks, as 36h, 30d or 8w")
    return int(match[1]) * {"h": 3600.0, "d": 86400.0, "w": 604800.0}[match[2]]


def _check_finite(given: dict[str, float | None]) -> None:
    for option, value in given.items():
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{option} is {value}: give a finite number")
