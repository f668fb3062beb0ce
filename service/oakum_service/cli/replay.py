"""`oakum replay`: what the holes of one's own log would have trained. Needs no service."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oakum_service.cli.app import CommandError, app, example
from oakum_service.cli.output_file import OutputFile
from oakum_service.cli.reach import Reach

if TYPE_CHECKING:
    from oakum_solver.logs.holes import HoleLog
    from oakum_solver.replay.result import ReplayResult
    from oakum_solver.replay.settings import ReplaySettings
    from oakum_solver.replay.workload import Workload

PLANNING = "Planning"
_LOG, _TRAINERS, _PLANNER, _OUTPUT = "The log", "The trainers", "The planner", "Output"
"""Panels of the help page."""
_PAPER = "paper"


@app.command(
    rich_help_panel=PLANNING,
    epilog=example(
        "oakum replay theta.swf.gz --workload paper --trainers 40 --report theta.html",
        "oakum replay idle.csv --workload trainers.json --cost in-place --json",
    ),
)
def replay(
    log: Annotated[
        Path,
        typer.Argument(help="Idle log (.csv: node,start_s,end_s) or jobs (.swf); also .gz.", show_default=False),
    ],
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="Nodes of the machine; by default as the SWF header says.", rich_help_panel=_LOG),
    ] = None,
    procs_per_node: Annotated[
        int, typer.Option(min=1, help="Processors of a node, where SWF counts these.", rich_help_panel=_LOG)
    ] = 1,
    placement: Annotated[
        Literal["first", "fifo"],
        typer.Option(
            help="A job of an SWF log takes the lowest-numbered or longest-free nodes.", rich_help_panel=_LOG
        ),
    ] = "first",
    easy: Annotated[
        bool,
        typer.Option(
            "--easy", help="Schedule the jobs anew: first come first served, backfill.", rich_help_panel=_LOG
        ),
    ] = False,
    turnover: Annotated[
        float, typer.Option(min=0, help="Seconds after each job in which a node is no use.", rich_help_panel=_LOG)
    ] = 0.0,
    keep_maintenance: Annotated[
        bool,
        typer.Option("--keep-maintenance", help="Do not cut out times of an empty machine.", rich_help_panel=_LOG),
    ] = False,
    from_hours: Annotated[
        float, typer.Option("--from", min=0, help="Begin so many hours into the log.", rich_help_panel=_LOG)
    ] = 0.0,
    hours: Annotated[
        float | None, typer.Option(min=0, help="Replay so many hours; by default all.", rich_help_panel=_LOG)
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            metavar="FILE|paper",
            help="Trainers, as JSON, or the seven published curves.",
            rich_help_panel=_TRAINERS,
        ),
    ] = _PAPER,
    trainers: Annotated[
        int | None,
        typer.Option(min=1, help="With `paper`: how many, by default 7.", rich_help_panel=_TRAINERS),
    ] = None,
    finite: Annotated[
        bool,
        typer.Option(
            "--finite", help="With `paper`: each ends with 1.3e8 samples; else endless.", rich_help_panel=_TRAINERS
        ),
    ] = False,
    max_trainers: Annotated[
        int | None,
        typer.Option(min=1, help="So many at once, first come first served.", rich_help_panel=_TRAINERS),
    ] = None,
    cost: Annotated[
        Literal["paper", "in-place", "none"],
        typer.Option(help="What a rescale costs.", rich_help_panel=_TRAINERS),
    ] = "paper",
    stall: Annotated[
        float, typer.Option(min=0, help="With `in-place`: seconds of a switch.", rich_help_panel=_TRAINERS)
    ] = 1.0,
    startup: Annotated[
        float,
        typer.Option(min=0, help="With `in-place`: seconds until a node is ready.", rich_help_panel=_TRAINERS),
    ] = 20.0,
    policy: Annotated[
        Literal["milp", "greedy", "equal-share"], typer.Option(help="Who plans.", rich_help_panel=_PLANNER)
    ] = "milp",
    objective: Annotated[
        str,
        typer.Option(
            help="throughput, speedup, weighted, fair-share, deadline or an expression.", rich_help_panel=_PLANNER
        ),
    ] = "speedup",
    look_ahead: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds over which a plan counts its gains; by default as long as holes are expected to last.",
            rich_help_panel=_PLANNER,
        ),
    ] = None,
    solver: Annotated[
        Literal["cbc", "highs"], typer.Option(help="The MILP solver.", rich_help_panel=_PLANNER)
    ] = "cbc",
    time_limit: Annotated[
        float, typer.Option(min=0, help="Seconds a plan may take.", rich_help_panel=_PLANNER)
    ] = 5.0,
    groups: Annotated[
        bool,
        typer.Option(
            "--groups/--no-groups",
            help="Forecast the holes' ends, and plan for nodes that may leave together.",
            rich_help_panel=_PLANNER,
        ),
    ] = False,
    guard: Annotated[
        float | None,
        typer.Option(min=0, help="Guarantee nodes to who has waited so many seconds.", rich_help_panel=_PLANNER),
    ] = None,
    user_cap: Annotated[
        int | None, typer.Option(min=1, help="Most nodes for one user's trainers.", rich_help_panel=_PLANNER)
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Plan for the published objective alone.", rich_help_panel=_PLANNER)
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a page with charts (.html).", rich_help_panel=_OUTPUT)
    ] = None,
    steps: Annotated[
        Path | None, typer.Option(help="Write a row for each plan (.csv).", rich_help_panel=_OUTPUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Replay a log: what would its idle node-time have trained?"""
    numbers = {"--turnover": turnover, "--from": from_hours, "--hours": hours, "--stall": stall}
    numbers |= {"--startup": startup, "--look-ahead": look_ahead, "--time-limit": time_limit, "--guard": guard}
    _check_finite(numbers)
    if workload != _PAPER and (trainers is not None or finite):
        raise typer.BadParameter("--trainers and --finite go with --workload paper; a file says it itself")
    inputs = {"the log": log} | ({} if workload == _PAPER else {"the workload": Path(workload)})
    outputs = _Outputs.check(report, steps, inputs)
    planning: dict[str, Any] = {
        "look_ahead_s": look_ahead,
        "stall_s": stall,
        "startup_s": startup,
        "max_trainers": max_trainers,
        "policy": policy,
        "groups": groups,
        "user_cap": user_cap,
        "published": published,
        "milp_solver": solver,
        "time_limit_s": time_limit,
    }
    reading: dict[str, Any] = {
        "nodes": nodes,
        "procs_per_node": procs_per_node,
        "placement": placement,
        "easy": easy,
        "turnover_s": turnover,
        "maintenance": "keep" if keep_maintenance else "cut",
    }
    with _errors_as_messages(), Reach.shown() as reach:
        from oakum_solver.logs.reading import read_log
        from oakum_solver.replay.engine import replay as replay_log

        # Before the log is read, which takes a while: a mistake here costs nothing.
        settings = _settings(objective, cost, guard, planning)
        tasks = _workload(workload, trainers, endless=not finite)
        holes = _window(read_log(log, **reading, progress=reach.reading), from_hours, hours)
        result = replay_log(holes, tasks, settings, reach.replaying)
    outputs.write(result)
    _print(result, as_json=as_json)


def _settings(objective: str, cost: str, guard: float | None, planning: dict[str, Any]) -> ReplaySettings:
    from oakum_solver.guard import StarvationGuard
    from oakum_solver.objectives import parse_metric
    from oakum_solver.replay.costs import CostModel
    from oakum_solver.replay.settings import ReplaySettings

    if guard is not None:
        planning = {**planning, "guard": StarvationGuard(wait_s=guard)}
    return ReplaySettings(objective=parse_metric(objective), cost=CostModel(cost), **planning)


def _workload(name: str, trainers: int | None, *, endless: bool) -> Workload:
    from oakum_solver.replay.workload import paper_workload, read_workload

    if name != _PAPER:
        return read_workload(Path(name))
    return paper_workload(endless=endless) if trainers is None else paper_workload(trainers, endless)


def _window(log: HoleLog, from_hours: float, hours: float | None) -> HoleLog:
    if not from_hours and hours is None:
        return log
    return log.between(3600 * from_hours, math.inf if hours is None else 3600 * (from_hours + hours))


def _print(result: ReplayResult, *, as_json: bool) -> None:
    if as_json:
        from oakum_solver.replay.export import as_document

        typer.echo(json.dumps(as_document(result), indent=2, allow_nan=False))
    else:
        from oakum_service.cli.replay_summary import print_summary

        print_summary(result)


def _check_finite(given: dict[str, float | None]) -> None:
    for option, value in given.items():
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{option} is {value}: give a finite number")


@dataclass(frozen=True)
class _Outputs:
    """The files to write in the end."""

    report: OutputFile | None
    steps: OutputFile | None

    @classmethod
    def check(cls, report: Path | None, steps: Path | None, inputs: Mapping[str, Path]) -> _Outputs:
        """Whatever would fail after minutes of work fails here."""
        made = cls(
            None if report is None else OutputFile(report, "--report"),
            None if steps is None else OutputFile(steps, "--steps"),
        )
        for file, (what, path) in itertools.product((made.report, made.steps), inputs.items()):
            if file is not None and file.same_as(path):
                raise CommandError(f"{file.path} is {what} itself: give another name")
        if report is not None and made.steps is not None and made.steps.same_as(report):
            raise CommandError("--report and --steps are the same file: give two names")
        if report is not None:
            with _errors_as_messages():
                from oakum_solver.replay.report import check_plotly

                check_plotly()
        return made

    def write(self, result: ReplayResult) -> None:
        if self.report is not None:
            from oakum_solver.replay.report import as_html

            self.report.write([as_html(result)])
        if self.steps is not None:
            from oakum_solver.replay.export import steps_csv

            self.steps.write(steps_csv(result.steps))


@contextmanager
def _errors_as_messages() -> Iterator[None]:
    try:
        from oakum_solver.errors import SolverError
    except ModuleNotFoundError as error:
        raise CommandError(f"a replay needs {error.name}: pip install 'oakum[solver]'") from error
    try:
        yield
    except SolverError as error:
        raise CommandError(str(error)) from error
    except ModuleNotFoundError as error:
        raise CommandError(f"a replay needs {error.name}: pip install 'oakum[solver]'") from error
