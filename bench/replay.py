"""What Oakum gets out of recorded holes, beside equal shares and BFTrainer's published objective.

    python bench/replay.py [THETA.swf.gz KTH.swf.gz SDSC.swf.gz] [--days 30] [--trainers 10] [--json FILE]

Without a log, one is drawn: 15 days of 4,700 nodes with about 24,000 events, a tenth of the node-time idle.
Every log is replayed with the published scalability tables as endless trainers, for each number of trainers,
each cost model and each planner; then with group awareness on and off. Ratios are to the zero-cost bound of the
same replay: what is missing to 1 is all that any planner could still win.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.reading import read_log
from oakum_solver.logs.synthetic import random_hole_log
from oakum_solver.objectives import parse_metric
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay
from oakum_solver.replay.export import as_document
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import paper_workload

PLANNERS: dict[str, dict[str, Any]] = {
    "milp": {},
    "greedy": {"policy": "greedy"},
    "published": {"published": True, "look_ahead_s": 120.0},
    "equal-share": {"policy": "equal-share"},
}
"""`published` is the published objective with its look-ahead of 120 s, solved exactly by our solver."""
GROUPS: dict[str, dict[str, Any]] = {
    "off": {"groups": False},
    "on": {"groups": True, "time_limit_s": 0.5},
    "off, 1 h": {"groups": False, "look_ahead_s": 3600.0},
    "on, 1 h": {"groups": True, "look_ahead_s": 3600.0, "time_limit_s": 0.5},
}
"""Group awareness, at the default look-ahead and at one of an hour."""


DRAWN = Path("drawn")
"""Stands for a log that is drawn."""


@dataclass(frozen=True)
class Case:
    """One replay."""

    log: Path
    trainers: int
    cost: str
    planner: str
    settings: dict[str, Any]


_window: dict[Path, HoleLog] = {}


def run(case: Case, objective: str, from_days: float, days: float | None) -> tuple[Case, dict[str, Any]]:
    """Replay one case; in a process of its own, which reads each log once."""
    if case.log not in _window:
        drawn = case.log == DRAWN
        log = random_hole_log(4700, 15, 1600, 0.1, seed=1) if drawn else read_log(case.log)
        if days is not None and not drawn:
            start_s = min(from_days * 86400, max(0.0, log.duration_s - days * 86400))
            log = log.between(start_s, min(log.duration_s, start_s + days * 86400))
        _window[case.log] = log
    settings = ReplaySettings(objective=parse_metric(objective), cost=CostModel(case.cost), **case.settings)
    result = as_document(replay(_window[case.log], paper_workload(case.trainers), settings))
    for bulky in ("trainers", "notes"):
        result.pop(bulky, None)
    return case, result


def table_of(title: str, results: list[tuple[Case, dict[str, Any]]]) -> Table:
    """One row for each log, number of trainers and cost model, one column for each planner."""
    planners = list(dict.fromkeys(case.planner for case, _ in results))
    made = Table(
        "log",
        "trainers",
        "cost",
        "zero-cost bound",
        *planners,
        "stalls and start-up",
        "solve p50, ms",
        title=title,
    )
    rows = itertools.groupby(results, key=lambda item: (item[0].log, item[0].trainers, item[0].cost))
    for (log, trainers, cost), group in rows:
        found = {case.planner: result for case, result in group}
        first = next(iter(found.values()))
        loss = first["loss"]
        made.add_row(
            log.name.split(".")[0],
            str(trainers),
            cost,
            f"{first['zero_cost_bound']:.4f}",
            *(f"{found[name]['efficiency'] / found[name]['zero_cost_bound']:.4f}" for name in planners),
            f"{100 * sum(loss[name] for name in ('startup', 'grow', 'shrink', 'preemption')):.2f} %",
            f"{first['solve_ms']['p50']:.1f}",
        )
    return made


def main(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Logs in the Standard Workload Format, or idle logs; none: drawn.")
    ] = None,
    trainers: Annotated[list[int], typer.Option(help="Numbers of trainers.")] = [10, 40, 100],  # noqa: B006
    cost: Annotated[list[str], typer.Option(help="Cost models.")] = ["paper", "in-place", "none"],  # noqa: B006
    objective: Annotated[str, typer.Option(help="What plans maximise.")] = "speedup",
    from_days: Annotated[float, typer.Option(help="Begin so many days into each log.")] = 30.0,
    days: Annotated[float | None, typer.Option(help="Replay so many days; all with --days 0.")] = 30.0,
    groups: Annotated[bool, typer.Option(help="Also replay with group awareness on and off.")] = True,
    jobs: Annotated[int, typer.Option(help="Replays at the same time.")] = os.cpu_count() or 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Replay every case and print the tables."""
    logs = logs or [DRAWN]
    cases = [
        Case(*case, name, PLANNERS[name]) for *case, name in itertools.product(logs, trainers, cost, PLANNERS)
    ]
    aware = [
        Case(*case, name, GROUPS[name]) for *case, name in itertools.product(logs, trainers, cost[:2], GROUPS)
    ]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, ProcessPoolExecutor(jobs) as pool:
        wanted = cases + (aware if groups else [])
        task = progress.add_task("replaying", total=len(wanted))
        futures = [pool.submit(run, case, objective, from_days, days or None) for case in wanted]
        for future in as_completed(futures):
            case, result = future.result()
            found[_key(case)] = result
            progress.advance(task)
    print_tables("Efficiency relative to the zero-cost bound", [(case, found[_key(case)]) for case in cases])
    if groups:
        print_tables("The same with group awareness off and on", [(case, found[_key(case)]) for case in aware])
    if json_file is not None:
        rows = [dataclasses.asdict(case) | {"log": case.log.name, "result": found[_key(case)]} for case in wanted]
        json_file.write_text(json.dumps(rows), encoding="utf-8")


def _cases(
    logs: list[Path], trainers: list[int], costs: list[str], planners: dict[str, dict[str, Any]]
) -> list[Case]:
    return [
        Case(*case, name, planners[name]) for *case, name in itertools.product(logs, trainers, costs, planners)
    ]


def _key(case: Case) -> tuple[Any, ...]:
    return case.log, case.trainers, case.cost, case.planner


def print_tables(title: str, results: list[tuple[Case, dict[str, Any]]]) -> None:
    """Print one table; wide enough for a pipe."""
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(title, results))


if __name__ == "__main__":
    typer.run(main)
