"""Replays recorded holes with Oakum's planner, with equal shares and with BFTrainer's published objective.

    python bench/replay.py [THETA.swf.gz KTH.swf.gz SDSC.swf.gz] [--days 30] [--trainers 10] [--json FILE]

Without a log, a random one is drawn: 15 days of 4,700 nodes with about 24,000 events and a tenth of the node-time
idle. Every log is replayed with endless trainers of the published scalability tables, for each number of trainers,
cost model and planner, once with the lowest-numbered nodes in place of those that last longest; then with group
awareness on and off. Results are relative to the zero-cost bound of the same replay: the difference to 1 is the
most that any planner could gain. Last, mixtures of models whose costs per sample differ by a factor of up to
10,000 show how each objective treats them.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from oakum_client.cli import output
from oakum_solver.logs.holes import HoleLog
from oakum_solver.logs.reading import read_log
from oakum_solver.logs.synthetic import random_hole_log
from oakum_solver.objectives import parse_objective
from oakum_solver.problem import Curve
from oakum_solver.replay.costs import CostModel
from oakum_solver.replay.engine import replay
from oakum_solver.replay.export import as_document
from oakum_solver.replay.settings import ReplaySettings
from oakum_solver.replay.workload import Workload, paper_workload

PLANNERS: dict[str, dict[str, Any]] = {
    "milp": {},
    "by number": {"nodes_by_number": True},
    "greedy": {"policy": "greedy"},
    "published": {"published": True, "look_ahead_s": 120.0},
    "equal-share": {"policy": "equal-share"},
}
"""`by number` has the counts of `milp` on the lowest-numbered nodes; `published` is the published objective with
its look-ahead of 120 s, solved exactly by our solver."""
GROUPS: dict[str, dict[str, Any]] = {
    "off": {"groups": False},
    "on": {"groups": True, "time_limit_s": 0.5},
    "off, 1 h": {"groups": False, "look_ahead_s": 3600.0},
    "on, 1 h": {"groups": True, "look_ahead_s": 3600.0, "time_limit_s": 0.5},
}
"""Group awareness, at the default look-ahead and at one of an hour."""


OBJECTIVES = ("throughput", "weighted", "speedup", "fair-share")
MIXTURE_RATES = (0.5, 20.0, 800.0, 6000.0)
"""Samples/s on one node of the models in a mixture, in turn."""

DRAWN = Path("drawn")
"""Stands for a randomly drawn log."""


@dataclass(frozen=True)
class Case:
    """The settings of one replay."""

    log: Path
    trainers: int
    cost: str
    planner: str
    settings: dict[str, Any]


_window: dict[Path, HoleLog] = {}


def window(path: Path, from_days: float, days: float | None) -> HoleLog:
    """The requested days of a log, or of a drawn one; cached, so that a process reads each log once."""
    if path not in _window:
        drawn = path == DRAWN
        log = random_hole_log(4700, 15, 1600, 0.1, seed=1) if drawn else read_log(path)
        if days is not None and not drawn:
            start_s = min(from_days * 86400, max(0.0, log.duration_s - days * 86400))
            log = log.between(start_s, min(log.duration_s, start_s + days * 86400))
        _window[path] = log
    return _window[path]


def run(case: Case, objective: str, from_days: float, days: float | None) -> tuple[Case, dict[str, Any]]:
    """Replay one case. Runs in a worker process."""
    settings = ReplaySettings(objective=parse_objective(objective), cost=CostModel(case.cost), **case.settings)
    result = as_document(replay(window(case.log, from_days, days), paper_workload(case.trainers), settings))
    for bulky in ("trainers", "notes"):
        result.pop(bulky, None)
    return case, result


def mixture(trainers: int) -> Workload:
    """Endless trainers of the published shapes of scalability, at `MIXTURE_RATES` on one node."""
    items = []
    for number, item in enumerate(paper_workload(trainers).items):
        curve = item.trainer.curve
        scale = MIXTURE_RATES[number % len(MIXTURE_RATES)] / curve.rate(1)
        scaled = Curve(tuple((nodes, rate * scale) for nodes, rate in curve.points))
        items.append(dataclasses.replace(item, trainer=dataclasses.replace(item.trainer, curve=scaled)))
    return Workload(tuple(items))


@dataclass(frozen=True)
class Shares:
    """How much the trainers of a mixture have trained and waited."""

    work: float
    """Training of all trainers together, in hours of training on one node per idle node-hour."""
    least: float
    """Training of the trainer that got least, relative to the mean over the trainers."""
    longest_wait_h: float
    """The longest time for which a trainer had no node, in hours."""


def run_mixture(
    log: Path, trainers: int, objective: str, from_days: float, days: float | None
) -> tuple[Path, int, str, Shares]:
    """Replay a mixture of so many trainers for one objective, without the starvation guard."""
    workload = mixture(trainers)
    result = replay(window(log, from_days, days), workload, ReplaySettings(objective=parse_objective(objective)))
    hours = [
        outcome.samples / item.trainer.curve.rate(1) / 3600
        for outcome, item in zip(result.trainers, workload.items, strict=True)
    ]
    waits_s = [
        until_s - from_s
        for outcome in result.trainers
        for (from_s, nodes), (until_s, _) in itertools.pairwise([*outcome.sizes, (3600 * result.hours, 0)])
        if nodes == 0
    ]
    mean = sum(hours) / len(hours)
    shares = Shares(sum(hours) / result.idle_node_hours, min(hours) / mean, max(waits_s, default=0.0) / 3600)
    return log, trainers, objective, shares


def print_mixtures(rows: list[tuple[Path, int, str, Shares]]) -> None:
    """One row for each log and number of trainers, three figures for each objective."""
    made = Table("log", "trainers", *OBJECTIVES, title="Mixtures: work, least share, longest wait in hours")
    for (log, trainers), group in itertools.groupby(rows, key=lambda row: row[:2]):
        found = {objective: shares for _, _, objective, shares in group}
        cells = (f"{s.work:.3f} {s.least:.2f} {s.longest_wait_h:.1f}" for s in (found[o] for o in OBJECTIVES))
        made.add_row(log.name.split(".")[0], str(trainers), *cells)
    output.console().print(made)


def table_of(title: str, results: list[tuple[Case, dict[str, Any]]]) -> Table:
    """One row for each log, number of trainers and cost model, one column for each planner."""
    planners = list(dict.fromkeys(case.planner for case, _ in results))
    counted = [name for name in ("milp", "by number") if name in planners]
    made = Table(
        "log",
        "trainers",
        "cost",
        "zero-cost bound",
        *planners,
        "stalls and start-up",
        *(f"rescales, {name}" for name in counted),
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
            *(f"{found[name]['efficiency'] / found[name]['zero_cost_bound']:.5f}" for name in planners),
            f"{100 * sum(loss[name] for name in ('startup', 'grow', 'shrink', 'preemption')):.2f} %",
            *(f"{found[name]['rescales']:,}" for name in counted),
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
    mixtures: Annotated[bool, typer.Option(help="Also replay mixtures of very different models.")] = True,
    jobs: Annotated[int, typer.Option(help="Replays at the same time.")] = os.cpu_count() or 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Replay every case and print the tables."""
    logs = logs or [DRAWN]
    cases = [
        Case(log, count, each, name, PLANNERS[name])
        for log, count, each, name in itertools.product(logs, trainers, cost, PLANNERS)
    ]
    aware = [
        Case(log, count, each, name, GROUPS[name])
        for log, count, each, name in itertools.product(logs, trainers, cost[:2], GROUPS)
    ]
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress, ProcessPoolExecutor(jobs) as pool:
        wanted = cases + (aware if groups else [])
        mixed_cases = [*itertools.product(logs, trainers, OBJECTIVES)] if mixtures else []
        task = progress.add_task("replaying", total=len(wanted) + len(mixed_cases))
        futures = [pool.submit(run, case, objective, from_days, days or None) for case in wanted]
        mixed = [pool.submit(run_mixture, *case, from_days, days or None) for case in mixed_cases]
        for future in as_completed(futures):
            case, result = future.result()
            found[_key(case)] = result
            progress.advance(task)
        shares = []
        for mixture_done in mixed:
            shares.append(mixture_done.result())
            progress.advance(task)
    print_tables("Efficiency relative to the zero-cost bound", [(case, found[_key(case)]) for case in cases])
    if groups:
        print_tables("The same with group awareness off and on", [(case, found[_key(case)]) for case in aware])
    if mixtures:
        print_mixtures(shares)
    if json_file is not None:
        rows = [dataclasses.asdict(case) | {"log": case.log.name, "result": found[_key(case)]} for case in wanted]
        json_file.write_text(json.dumps(rows), encoding="utf-8")


def _cases(
    logs: list[Path], trainers: list[int], costs: list[str], planners: dict[str, dict[str, Any]]
) -> list[Case]:
    return [
        Case(log, count, cost, name, planners[name])
        for log, count, cost, name in itertools.product(logs, trainers, costs, planners)
    ]


def _key(case: Case) -> tuple[Any, ...]:
    return case.log, case.trainers, case.cost, case.planner


def print_tables(title: str, results: list[tuple[Case, dict[str, Any]]]) -> None:
    """Print one table."""
    output.console().print(table_of(title, results))


if __name__ == "__main__":
    typer.run(main)
