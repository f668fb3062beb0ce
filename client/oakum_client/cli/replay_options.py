"""The options of `oakum replay`, one group for each panel of its help page."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from oakum_solver.logs.holes import HoleLog
    from oakum_solver.planning import PlanningRules
    from oakum_solver.replay.settings import ReplaySettings
    from oakum_solver.replay.workload import Workload

_PAPER = "paper"
_SLURM, _OWN = Path("slurm"), Path("own")
_SINCE = {_SLURM: "30d", _OWN: "7d"}
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
            help="Idle log (.csv: node,start_s,end_s) or jobs (.swf, or the logs of Philly and Acme), also .gz; "
            "the word `slurm`: from sacct; or `own`: what the running service has seen.",
            show_default=False,
        ),
    ]
    since: Annotated[
        str | None,
        _log_option(
            metavar="30d", help="How far back: 90m, 36h, 30d, 8w; by default 30d with `slurm`, 7d with `own`."
        ),
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
        if self.since is not None:
            if self.log not in _SINCE:
                raise typer.BadParameter("--since goes with `slurm` and `own`; a file has --from and --hours")
            _span_s(self.since)

    @property
    def is_slurm(self) -> bool:
        """Whether the log is Slurm's own accounting."""
        return self.log == _SLURM

    @property
    def names_nodes(self) -> bool:
        """Whether the log has the nodes' own names; nodes of SWF logs have made-up ones."""
        return not self.log.name.lower().endswith((".swf", ".swf.gz"))

    @property
    def is_own(self) -> bool:
        """Whether the log is what the running service has seen."""
        return self.log == _OWN

    @property
    def cuts_time(self) -> bool:
        """Whether only a part of the log is to be replayed."""
        return self.from_hours > 0 or self.hours is not None

    @property
    def since_s(self) -> float:
        """How far back Slurm's accounting or the service's own history is read, in seconds."""
        return _span_s(self.since or _SINCE[self.log])

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
        return read_accounting(Settings().slurm, until - self.since_s, until)

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
    learn_curves: Annotated[
        bool,
        _trainer_option("--learn-curves", help="Replay once more with curves that nobody knows before."),
    ] = False
    whole_nodes: Annotated[
        bool,
        _trainer_option("--whole-nodes", help="With a log of slots: replay once more with whole nodes only."),
    ] = False
    max_trainers: Annotated[
        int | None, _trainer_option(min=1, help="Most trainers at once, first come first served.")
    ] = None
    cost: Annotated[
        Literal["paper", "in-place", "none"] | None,
        _trainer_option(help="What a rescale costs; by default `paper`, with --as `in-place`."),
    ] = None
    stall: Annotated[
        float | None,
        _trainer_option(min=0, help="With `in-place`: seconds for which a rescale stops a trainer; by default 1."),
    ] = None
    startup: Annotated[
        float | None,
        _trainer_option(min=0, help="With `in-place`: seconds that a node takes to start up; by default 20."),
    ] = None

    def __post_init__(self) -> None:
        _check_finite({"--stall": self.stall, "--startup": self.startup})
        if self.workload_file is not None and (self.trainers is not None or self.finite):
            raise typer.BadParameter("--trainers and --finite go with --workload paper; a file says it itself")

    @property
    def names_trainers(self) -> bool:
        """Whether an option says which trainers are replayed."""
        return self.workload != _PAPER or self.trainers is not None or self.finite

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

    as_site: Annotated[
        str | None,
        _planner_option(
            "--as",
            metavar="service|URL|FILE",
            help="Plan as this service does, or would with this configuration file; other options count more.",
        ),
    ] = None
    policy: Annotated[Literal["milp", "greedy", "equal-share"], _planner_option(help="How nodes are granted.")] = (
        "milp"
    )
    objective: Annotated[
        str | None,
        _planner_option(
            help="throughput, speedup, weighted, fair-share, deadline or an expression; by default speedup."
        ),
    ] = None
    look_ahead: Annotated[
        str | None,
        _planner_option(
            metavar="SECONDS|auto",
            help="Seconds over which a plan counts its gains; by default a tenth of the time for which idle nodes "
            "are expected to stay idle.",
        ),
    ] = None
    solver: Annotated[Literal["cbc", "highs"] | None, _planner_option(help="The MILP solver; by default cbc.")] = (
        None
    )
    time_limit: Annotated[
        float | None, _planner_option(min=0, help="Time limit for one plan, in seconds; by default 5.")
    ] = None
    groups: Annotated[
        bool | None,
        _planner_option(
            "--groups/--no-groups", help="Forecast the holes' ends, and plan for nodes that may leave together."
        ),
    ] = None
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
        _check_finite({"--time-limit": self.time_limit, "--guard": self.guard})
        if self.look_ahead is not None:
            _look_ahead_s(self.look_ahead)

    def rules(self, site: PlanningRules) -> PlanningRules:
        """The site's rules, with what the options say instead. Raises `SolverError` for an objective that cannot
        be read."""
        from oakum_solver.guard import StarvationGuard
        from oakum_solver.objectives import parse_objective

        given: dict[str, Any] = {
            "milp_solver": self.solver,
            "time_limit_s": self.time_limit,
            "groups": self.groups,
            "user_cap": self.user_cap,
            "objective": None if self.objective is None else parse_objective(self.objective),
            "guard": None if self.guard is None else StarvationGuard(wait_s=self.guard),
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.look_ahead is not None:
            given["look_ahead_s"] = _look_ahead_s(self.look_ahead)
        return replace(site, **given)


@dataclass(frozen=True)
class OutputOptions:
    """Which files `oakum replay` writes, and in which form it prints the result."""

    report: Annotated[Path | None, _output_option(help="Write a page with charts (.html).")] = None
    steps: Annotated[Path | None, _output_option(help="Write a row for each plan (.csv).")] = None
    as_json: Annotated[bool, _output_option("--json", help="Print one JSON object.")] = False


def replay_settings(trainers: TrainerOptions, planner: PlannerOptions) -> ReplaySettings:
    """Make the replay engine's settings from the options. Raises `SolverError` for an objective that cannot be
    read, and `CommandError` where `--as` names no site that answers."""
    from oakum_client.cli.site_rules import SiteRules, site_rules
    from oakum_solver.exploration import Exploration
    from oakum_solver.replay.costs import CostModel
    from oakum_solver.replay.settings import ReplaySettings

    defaults = ReplaySettings()
    site = SiteRules(defaults, defaults.stall_s, defaults.startup_s, Exploration())
    cost = "paper"
    if planner.as_site is not None:
        site, cost = site_rules(planner.as_site), "in-place"
    rules = planner.rules(site.rules)
    return ReplaySettings.following(
        rules,
        cost=CostModel(trainers.cost or cost),
        stall_s=site.stall_s if trainers.stall is None else trainers.stall,
        startup_s=site.startup_s if trainers.startup is None else trainers.startup,
        learning=site.exploration if trainers.learn_curves else None,
        max_trainers=trainers.max_trainers,
        policy=planner.policy,
        published=planner.published,
    )


def _look_ahead_s(text: str) -> float | None:
    """The seconds that `--look-ahead` names; None for `auto`."""
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"--look-ahead is {text!r}: give seconds above 0, or auto")
    return seconds


def _span_s(text: str) -> float:
    """The seconds in `90m`, `36h`, `30d` or `8w`."""
    match = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", text, re.ASCII)
    if match is None:
        raise typer.BadParameter(
            f"--since is {text!r}: give minutes, hours, days or weeks, as 90m, 36h, 30d or 8w"
        )
    return int(match[1]) * {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}[match[2]]


def _check_finite(options: dict[str, float | None]) -> None:
    for option, value in options.items():
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{option} is {value}: give a finite number")
