"""Measures the time to make a plan, compared with BFTrainer's MILP, and on clusters too large for that MILP.

    python bench/solve.py [--quick] [--limit-s 120] [--seeds 5] [--instances 100] [--json FILE]

First, Oakum's solver and the published model with two values of M solve the same problems with the published
terms, one after the other, by the same CBC, to a gap of 0. Oakum's time is that from the problem to the verified
plan, the published model's that from the problem to its node map. Then Oakum's solver runs alone. Exits with
status 1 if a plan of Oakum's is worth less than it must be; times are only printed.
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
from rich.progress import track
from rich.table import Table

from instances import random_problem
from oakum_client.cli import output
from oakum_solver.plan import Plan
from oakum_solver.problem import PUBLISHED, Problem, Terms
from oakum_solver.solve import Policy, solve
from published_model import corrected_big_m, published_big_m, solve_published

COMPARED = [(10, 100), (10, 400), (10, 800), (20, 400), (30, 400)]
ALONE = {(20, 400): 1.0, (40, 1000): 1.0, (100, 2500): 0.5, (100, 5000): 0.5, (200, 10000): 0.25}
"""(number of trainers, number of nodes) -> share of `--instances` that have this size."""
QUICK = [(10, 100), (20, 400)]

MODELS: dict[str, Callable[[Problem], int]] = {"N+1": published_big_m, "2N": corrected_big_m}
"""Name of the published model's big M -> function that computes it."""
TERMS = {"off": PUBLISHED, "on": Terms()}
SOLVERS = ("cbc", "highs", "greedy")

_SAME = 1e-6
"""Relative difference below which two values count as equal."""
_REPEATS = 3
"""Number of timings of Oakum's solver before, between and after the published models."""

Size = tuple[int, int]
Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class Published:
    """One result of a published model."""

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
    """One problem, solved by Oakum and by the published models."""

    trainers: int
    nodes: int
    seed: int
    seconds: list[float]
    """Times of Oakum's solver."""
    value: float
    optimal: bool
    solver: str
    greedy_value: float
    published: dict[str, Published] = field(default_factory=dict)

    def complaints(self) -> Iterable[str]:
        """A sentence for each value that cannot be right: Oakum's below that of `greedy` or a published plan, or
        above a proven optimum."""
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
class SolvedCase:
    """One problem, solved by Oakum with one solver setting."""

    trainers: int
    nodes: int
    seed: int
    terms: str
    asked: str
    """Key of the setting in `SOLVERS`."""
    solver: str
    """The method that found the plan, as `Plan.solver`."""
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


def run_alone(size: Size, seed: int) -> list[SolvedCase]:
    """Solve one random problem with all solver settings; the first setting rotates with the seed."""
    ways = list(itertools.product(TERMS, SOLVERS))
    first = seed % len(ways)
    return [_run(size, seed, terms, asked) for terms, asked in ways[first:] + ways[:first]]


def _run(size: Size, seed: int, terms: str, asked: str) -> SolvedCase:
    problem = random_problem(*size, seed, TERMS[terms])
    policy: Policy = "greedy" if asked == "greedy" else "milp"
    if asked == "highs":
        problem = replace(problem, milp_solver="highs")
    plan, seconds = _solve_afresh(problem, policy)
    return SolvedCase(*size, seed, terms, asked, plan.solver, seconds, plan.value, plan.gap, plan.optimal)


def _time_repeatedly(problem: Problem, seconds: list[float]) -> Plan:
    """Solve a problem several times, append each time to `seconds`, and return the plan."""
    for _ in range(_REPEATS):
        plan, taken_s = _solve_afresh(problem, "milp")
        seconds.append(taken_s)
    return plan


def _solve_afresh(problem: Problem, policy: Policy) -> tuple[Plan, float]:
    """(plan, seconds) with the solver's caches emptied first, so that repetitions are not faster."""
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


def complaints_alone(runs: list[SolvedCase]) -> Iterable[str]:
    """A sentence for each problem where the policy `milp` is worth less than `greedy`."""
    greedy = _greedy_values(runs)
    for run in runs:
        if _less(run.value, floor := greedy[run.trainers, run.nodes, run.seed, run.terms]):
            where = f"{run.trainers} x {run.nodes}, seed {run.seed}, terms {run.terms}, {run.asked}"
            yield f"{where}: {run.value!r} is less than greedy's {floor!r}"


def _greedy_values(runs: list[SolvedCase]) -> dict[tuple[int, int, int, str], float]:
    return {(r.trainers, r.nodes, r.seed, r.terms): r.value for r in runs if r.asked == "greedy"}


def times_table(compared: list[Comparison]) -> Table:
    """Table of the times of all solvers."""
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
    """Table of how much more Oakum's plans are worth than those that the published models found."""
    table = Table("trainers x nodes", "M", "proven", "no plan", "ours / theirs - 1: min", "mean", "max")
    for size, group in _by(compared, lambda c: f"{c.trainers} x {c.nodes}"):
        for name in MODELS:
            theirs = [c.published[name] for c in group]
            gains = [c.value / t.value - 1 for c, t in zip(group, theirs, strict=True) if t.value]
            spread = [min(gains), statistics.mean(gains), max(gains)] if gains else []
            proven, planless = sum(t.optimal for t in theirs), sum(t.value is None for t in theirs)
            table.add_row(size, name, f"{proven}", f"{planless}", *(f"{gain:+.1e}" for gain in spread))
    return table


def alone_table(runs: list[SolvedCase]) -> Table:
    """Table of times and gaps of Oakum's solver."""
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
    """Group the items by key, in order of the keys' first occurrence."""
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

    console = output.console()
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
