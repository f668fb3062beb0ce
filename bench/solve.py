"""How long a plan takes to make, beside BFTrainer's own MILP and on clusters that are too large for it.

    python bench/solve.py [--quick] [--limit-s 120] [--seeds 5] [--instances 100] [--json FILE]

First the same problems, in the published terms, for our solver and for the published model with its two values of
M, one after the other on the same CBC, all to a gap of 0. Ours counts everything from the problem to the verified
plan, the model building included; so does the published model, up to its node map. Then our solver alone. Ends
with status 1 where a plan of ours is worth less than it must be; times are printed, not judged.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from instances import random_problem
from oakum_solver.plan import Plan
from oakum_solver.problem import PUBLISHED, Problem, Terms
from oakum_solver.solve import Policy, solve
from published_model import corrected_big_m, published_big_m, solve_published

COMPARED = [(10, 100), (10, 400), (10, 800), (20, 400), (30, 400)]
ALONE = {(20, 400): 1.0, (40, 1000): 1.0, (100, 2500): 0.5, (100, 5000): 0.5, (200, 10000): 0.25}
"""(Trainers, nodes) -> share of `--instances`."""
QUICK = [(10, 100), (20, 400)]

MODELS: dict[str, Callable[[Problem], int]] = {"N+1": published_big_m, "2N": corrected_big_m}
"""Big M of the published model -> its value."""
TERMS = {"off": PUBLISHED, "on": Terms()}
SOLVERS = ("cbc", "highs", "greedy")

_SAME = 1e-6
"""Relative difference of two values that counts as none."""
_REPEATS = 3
"""How often our solver is timed before, between and after the published models."""

Size = tuple[int, int]
Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Published:
    """One answer of a published model."""

    seconds: float
    build_s: float
    value: float | None
    bound: float | None
    optimal: bool
    num_binaries: int
    num_constraints: int
    failure: str


@dataclass(frozen=True)
class Comparison:
    """One problem, solved by everyone."""

    trainers: int
    nodes: int
    seed: int
    seconds: list[float]
    """Of our solver's runs."""
    value: float
    optimal: bool
    solver: str
    greedy_value: float
    published: dict[str, Published] = field(default_factory=dict)

    def complaints(self) -> Iterable[str]:
        """Where our plan is worth less than it must be."""
        where = f"{self.trainers} x {self.nodes}, seed {self.seed}"
        if _less(self.value, self.greedy_value):
            yield f"{where}: {self.value!r} is less than greedy's {self.greedy_value!r}"
        for name, other in self.published.items():
            if other.value is not None and _less(self.value, other.value):
                yield f"{where}: {self.value!r} is less than the {other.value!r} of M = {name}"
        corrected = self.published["2N"]
        if corrected.optimal and corrected.value is not None and _less(corrected.value, self.value):
            yield f"{where}: {self.value!r} is more than the optimum {corrected.value!r} of M = 2N"


@dataclass(frozen=True)
class Run:
    """One problem, solved by us in one way."""

    trainers: int
    nodes: int
    seed: int
    terms: str
    asked: str
    """Which of `SOLVERS`."""
    solver: str
    """Who found the plan."""
    seconds: float
    value: float
    gap: float
    optimal: bool


def compare(size: Size, seed: int, limit_s: float) -> Comparison:
    """Solve one random problem with our solver and with the published models, interleaved."""
    problem = replace(random_problem(*size, seed, PUBLISHED), gap=0.0)
    seconds: list[float] = []
    published: dict[str, Published] = {}
    plan = _time_repeatedly(problem, seconds)
    for name, big_m in MODELS.items():
        started_s = time.perf_counter()
        answer = solve_published(problem, big_m(problem), limit_s)
        published[name] = Published(
            time.perf_counter() - started_s,
            answer.build_s,
            answer.value,
            answer.bound,
            answer.optimal,
            answer.num_binaries,
            answer.num_constraints,
            answer.failure,
        )
        _time_repeatedly(problem, seconds)
    greedy_value = solve(problem, policy="greedy").value
    return Comparison(*size, seed, seconds, plan.value, plan.optimal, plan.solver, greedy_value, published)


def run_alone(size: Size, seed: int) -> list[Run]:
    """Solve one random problem in all our ways, one after the other, each problem beginning with another one."""
    ways = list(itertools.product(TERMS, SOLVERS))
    first = seed % len(ways)
    return [_run(size, seed, terms, asked) for terms, asked in ways[first:] + ways[:first]]


def _run(size: Size, seed: int, terms: str, asked: str) -> Run:
    problem = random_problem(*size, seed, TERMS[terms])
    policy: Policy = "greedy" if asked == "greedy" else "milp"
    if asked == "highs":
        problem = replace(problem, milp_solver="highs")
    plan, seconds = _solve_afresh(problem, policy)
    return Run(*size, seed, terms, asked, plan.solver, seconds, plan.value, plan.gap, plan.optimal)


def _time_repeatedly(problem: Problem, seconds: list[float]) -> Plan:
    """The plan; the seconds of each of some repetitions go to `seconds`."""
    for _ in range(_REPEATS):
        plan, taken_s = _solve_afresh(problem, "milp")
        seconds.append(taken_s)
    return plan


def _solve_afresh(problem: Problem, policy: Policy) -> tuple[Plan, float]:
    """The plan and the seconds that it takes with the solver's caches empty, so that repetitions do not help."""
    for name, module in sys.modules.items():
        if name.startswith("oakum_solver"):
            for function in vars(module).values():
                if hasattr(function, "cache_clear"):
                    function.cache_clear()
    started_s = time.perf_counter()
    plan = solve(problem, policy)
    return plan, time.perf_counter() - started_s


def _less(value: float, other: float) -> bool:
    return value < other - _SAME * max(abs(value), abs(other))


def complaints_alone(runs: list[Run]) -> Iterable[str]:
    """Where the MILP's plan is worth less than the greedy one."""
    greedy = _greedy_values(runs)
    for run in runs:
        if _less(run.value, floor := greedy[run.trainers, run.nodes, run.seed, run.terms]):
            where = f"{run.trainers} x {run.nodes}, seed {run.seed}, terms {run.terms}, {run.asked}"
            yield f"{where}: {run.value!r} is less than greedy's {floor!r}"


def _greedy_values(runs: list[Run]) -> dict[tuple[int, int, int, str], float]:
    return {(r.trainers, r.nodes, r.seed, r.terms): r.value for r in runs if r.asked == "greedy"}


def times_table(compared: list[Comparison]) -> Table:
    """How long everyone takes."""
    table = Table("trainers x nodes", "n", "model", "median, s", "max, s", "not proven", "median / ours")
    for size, group in _by(compared, lambda c: f"{c.trainers} x {c.nodes}"):
        ours_s = statistics.median(statistics.median(c.seconds) for c in group)
        slowest_s = max(max(c.seconds) for c in group)
        not_proven = sum(not c.optimal for c in group)
        table.add_row(size, f"{len(group)}", "ours", f"{ours_s:.3f}", f"{slowest_s:.3f}", f"{not_proven}", "")
        for name in MODELS:
            theirs = [c.published[name] for c in group]
            median_s = statistics.median(t.seconds for t in theirs)
            slowest_s = max(t.seconds for t in theirs)
            not_proven = sum(not t.optimal for t in theirs)
            row = f"{median_s:.2f}", f"{slowest_s:.2f}", f"{not_proven}", f"{median_s / ours_s:.0f}"
            table.add_row("", "", f"M = {name}", *row)
    return table


def values_table(compared: list[Comparison]) -> Table:
    """How much more our plans are worth than those of the published models that have one."""
    table = Table("trainers x nodes", "M", "proven", "no plan", "ours / theirs - 1: min", "mean", "max")
    for size, group in _by(compared, lambda c: f"{c.trainers} x {c.nodes}"):
        for name in MODELS:
            theirs = [c.published[name] for c in group]
            gains = [c.value / t.value - 1 for c, t in zip(group, theirs, strict=True) if t.value]
            spread = [min(gains), statistics.mean(gains), max(gains)] if gains else []
            proven, planless = sum(t.optimal for t in theirs), sum(t.value is None for t in theirs)
            table.add_row(size, name, f"{proven}", f"{planless}", *(f"{gain:+.1e}" for gain in spread))
    return table


def alone_table(runs: list[Run]) -> Table:
    """Times and gaps of our solver."""
    table = Table("trainers x nodes", "terms", "asked", "n", "p50, ms", "p99, ms", "max, ms")
    for column in ("max gap", "proven", "MILP's", "over greedy"):
        table.add_column(column)
    greedy = _greedy_values(runs)
    ordered = sorted(runs, key=lambda r: (r.trainers, r.nodes, r.terms, SOLVERS.index(r.asked)))
    for names, group in _by(ordered, lambda r: (f"{r.trainers} x {r.nodes}", r.terms, r.asked)):
        milliseconds = 1000 * np.percentile([r.seconds for r in group], (50, 99, 100))
        gains = [r.value / greedy[r.trainers, r.nodes, r.seed, r.terms] - 1 for r in group]
        table.add_row(
            *names,
            f"{len(group)}",
            *(f"{figure:.1f}" for figure in milliseconds),
            f"{max(r.gap for r in group):.1e}",
            f"{statistics.mean(r.optimal for r in group):.0%}",
            f"{statistics.mean(r.solver != 'greedy' for r in group):.0%}",
            f"{statistics.mean(gains):+.1e}",
        )
    return table


def _by(items: list[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """The items by key, in the order in which the keys first come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.items())


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Few small problems and a short limit.")] = False,
    limit_s: Annotated[float, typer.Option(help="Seconds that CBC gets for a published model.")] = 120.0,
    seeds: Annotated[int, typer.Option(help="Problems of each size to compare on; 0: do not compare.")] = 5,
    instances: Annotated[int, typer.Option(help="Problems of a small size for us alone; 0: none.")] = 100,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures here, too.")] = None,
) -> None:
    """Measure and print."""
    sizes, alone = COMPARED, ALONE
    if quick:
        sizes, alone = QUICK, dict.fromkeys(QUICK, 1.0)
        limit_s, seeds, instances = min(limit_s, 20.0), min(seeds, 2), min(instances, 10)
    solve(random_problem(2, 10, 0, PUBLISHED))  # the imports
    asked = list(itertools.product(sizes, range(seeds)))
    compared = [compare(size, seed, limit_s) for size, seed in track(asked, description="comparing")]
    counts = {size: max(1, round(share * instances)) for size, share in alone.items()} if instances else {}
    planned = [(size, seed) for size, count in counts.items() for seed in range(count)]
    runs = [run for size, seed in track(planned, description="alone") for run in run_alone(size, seed)]

    console = Console(width=max(Console().width, 110))
    tables = [times_table(compared), values_table(compared)] if compared else []
    for table in [*tables, alone_table(runs)] if runs else tables:
        console.print(table)
    if json_file is not None:
        document = {"cores": os.cpu_count(), "limit_s": limit_s, "compared": compared, "alone": runs}
        json_file.write_text(json.dumps(document, default=asdict), encoding="utf-8")
    complaints = [complaint for comparison in compared for complaint in comparison.complaints()]
    complaints += complaints_alone(runs)
    for complaint in complaints:
        console.print(complaint, style="red")
    raise typer.Exit(bool(complaints))


if __name__ == "__main__":
    typer.run(main)
