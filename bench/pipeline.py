"""Measures how close pipelines come to the bubbles of their schedules, and compares them with torch's pipelines.

    python bench/pipeline.py                                  # all parts, about ten minutes
    python bench/pipeline.py --only bubbles --workers 4 --json pipeline.json
    python bench/pipeline.py --only jitter --forward-ms 10
    python bench/pipeline.py --only layouts                   # steps as predicted and as measured

Layers sleep for a given time instead of computing. So 4 or 8 workers overlap on two processors, and the times of
passes are known exactly. Any time beyond them is the engine's cost: messages, autograd, Python.

A stage has three layers, in `layouts` those that the layout gives it. Half of a backward pass is for the inputs
and half for the weights.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from oakum_client.cli import output
from oakum_worker.parallel.pipeline.schedules import SCHEDULES
from oakum_worker.schedule_table import CHIMERA, MESSAGE_DRIVEN, ONE_F_ONE_B
from pipelining.cases import Case, Figures, Runner, figures_of
from pipelining.layouts import layout_cases
from pipelining.workers import TORCHS, run_cases


class Part(StrEnum):
    """Parts of the benchmark."""

    BUBBLES = "bubbles"
    JITTER = "jitter"
    TORCH = "torch"
    LAYOUTS = "layouts"


WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        (name, {} if scheme is None else {"scheme": scheme})
        for name, kind in SCHEDULES.items()
        for scheme in kind.schemes
    ),
    (CHIMERA.name, {"num_pipes": 4}),
)
JITTERS = (0.0, 0.25, 0.5, 1.0)


def bubble_cases(num_workers: int, make: Callable[..., Case]) -> Iterator[Case]:
    """Cases for each schedule and each number of micro-batches that the schedule supports."""
    for number in (4, 8, 16):
        for name, options in WAYS:
            in_pairs = options.get("scheme") in ("forward-doubling", "backward-halving")
            if number < num_workers or (number == num_workers and in_pairs):
                continue
            yield make(name, num_workers, number, tuple(options.items()))


def jitter_cases(num_workers: int, make: Callable[..., Case]) -> Iterator[Case]:
    """Three cases with equal random delays: 1F1B scheduled, message-driven, and message-driven with twice as many
    micro-batches in flight."""
    runners: tuple[tuple[Runner, int | None], ...] = (
        ("scheduled", None),
        (MESSAGE_DRIVEN, None),
        (MESSAGE_DRIVEN, 2 * num_workers),
    )
    for jitter in JITTERS:
        for number in (8, 16):
            for runner, limit in runners:
                yield make(ONE_F_ONE_B.name, num_workers, number, runner=runner, limit=limit, jitter=jitter)


def torch_cases(num_workers: int, make: Callable[..., Case]) -> Iterator[Case]:
    """Cases for the schedules that torch also has, run by torch and by Oakum."""
    runners: tuple[Runner, ...] = ("scheduled", "torch")
    for number in (4, 8, 16):
        for name in TORCHS:
            for runner in runners:
                yield make(name, num_workers, number, runner=runner)


CASES = {
    Part.BUBBLES: bubble_cases,
    Part.JITTER: jitter_cases,
    Part.TORCH: torch_cases,
    Part.LAYOUTS: layout_cases,
}


def bubble_table(figures: list[Figures]) -> Table:
    """Table with one row for each case: measured figures beside the formulas'."""
    columns = (
        "D",
        "N",
        "schedule",
        "formula",
        "its value",
        "simulated",
        "measured",
        "alive on a worker",
        "should be",
    )
    table = Table(*columns, title="Bubble ratios and micro-batches alive, B = 2F", box=box.MARKDOWN)
    for one in figures:
        table.add_row(
            str(one.case.num_workers),
            str(one.case.num_micro_batches),
            one.case.label,
            one.formula_text,
            _percent(one.formula),
            _percent(one.simulated),
            _percent(one.bubble),
            f"{min(one.live)} to {max(one.live)}",
            f"{one.live_formula[0]} to {one.live_formula[1]}" if one.live_formula else "",
        )
    return table


def jitter_table(figures: list[Figures]) -> Table:
    """Table that compares each scheduled case with the message-driven cases, which follow it in `figures`."""
    columns = ("D", "N", "jitter", "on their way", "scheduled, ms a step", "message-driven, ms a step", "ratio")
    table = Table(*columns, "step by step", title="1F1B where passes take longer at random", box=box.MARKDOWN)
    for start in range(0, len(figures), 3):
        one, *others = figures[start : start + 3]
        for other in others:
            case = other.case
            sizes = str(case.num_workers), str(case.num_micro_batches)
            limit = str(min(case.limit or case.num_workers, case.num_micro_batches))
            table.add_row(*sizes, f"{case.jitter:g}", limit, *_beside(one, other))
    return table


def torch_table(figures: list[Figures]) -> Table:
    """Table that compares each case with the same case run by torch, which follows it in `figures`."""
    columns = ("D", "N", "schedule", "ours, ms a step", "torch's, ms a step", "ratio", "step by step")
    table = Table(*columns, title="Beside torch's runtime of the same schedule", box=box.MARKDOWN)
    for one, other in zip(figures[::2], figures[1::2], strict=True):
        case = one.case
        table.add_row(str(case.num_workers), str(case.num_micro_batches), case.label, *_beside(one, other))
    return table


def layout_table(figures: list[Figures]) -> Table:
    """Table with one row for each layout, the one predicted to be fastest first: predicted and measured times."""
    columns = ("replicas x workers", "N", "schedule", "predicted, ms a step", "measured, ms a step", "ratio")
    table = Table(*columns, title="Steps predicted by the chooser of layouts", box=box.MARKDOWN)
    for one in sorted(figures, key=lambda one: (one.case.num_ranks, one.case.predicted_s)):
        case = one.case
        assert case.predicted_s is not None
        table.add_row(
            f"{case.num_replicas} x {case.num_workers}",
            str(case.num_micro_batches),
            MESSAGE_DRIVEN if case.runner == MESSAGE_DRIVEN else case.label,
            f"{1e3 * case.predicted_s:.0f}",
            f"{1e3 * one.step_s:.0f}",
            f"{one.step_s / case.predicted_s:.3f}",
        )
    return table


def _beside(one: Figures, other: Figures) -> tuple[str, str, str, str]:
    ratios = [theirs / ours for ours, theirs in zip(one.steps_s, other.steps_s, strict=True)]
    ours_s, theirs_s = statistics.mean(one.steps_s), statistics.mean(other.steps_s)
    return (
        f"{1e3 * ours_s:.0f}",
        f"{1e3 * theirs_s:.0f}",
        f"{theirs_s / ours_s:.3f}",
        f"{min(ratios):.3f} to {max(ratios):.3f}",
    )


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} %"


def measure(cases: list[Case], progress: Progress, title: str) -> Iterator[Figures]:
    """Run all cases on one set of processes and return their figures."""
    task = progress.add_task(title, total=len(cases))
    for case, seen in zip(cases, run_cases(cases), strict=True):
        progress.update(task, advance=1, description=f"{title}: {case.label}, N = {case.num_micro_batches}")
        yield figures_of(case, seen)


TABLES = {
    Part.BUBBLES: bubble_table,
    Part.JITTER: jitter_table,
    Part.TORCH: torch_table,
    Part.LAYOUTS: layout_table,
}


def main(
    workers: Annotated[
        list[int] | None, typer.Option(help="Workers of a pipeline, or ranks for layouts; may be repeated.")
    ] = None,
    only: Annotated[list[Part] | None, typer.Option(help="Run these parts alone; may be repeated.")] = None,
    forward_ms: Annotated[float, typer.Option(min=1, help="How long a forward pass of a worker sleeps.")] = 20.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each case, after one to warm up.")] = 4,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Measure bubbles, micro-batches alive and step times of pipelines whose stages sleep, and print tables.

    Example: python bench/pipeline.py --workers 4 --only bubbles --json pipeline.json
    """
    figures: dict[str, list[Figures]] = {}

    def make(*arguments: Any, jitter: float = 0.0, **options: Any) -> Case:
        # Random delays need more steps for a steady mean.
        num_steps = steps * 4 if jitter else steps
        fixed: dict[str, Any] = {"forward_s": forward_ms / 1e3, "num_steps": num_steps, "jitter": jitter}
        return Case(*arguments, **(fixed | options))

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = output.console()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for part in only or list(Part):
            made = figures.setdefault(part.value, [])
            for num_workers in workers or ([4, 8] if part == Part.BUBBLES else [4]):
                cases = list(CASES[part](num_workers, make))
                for one in measure(cases, progress, f"{part}, D = {num_workers}"):
                    made.append(one)
                    if json_file is not None:
                        document = {name: [dataclasses.asdict(f) for f in all_] for name, all_ in figures.items()}
                        json_file.write_text(json.dumps(document, indent=1), encoding="utf-8")
    for name, made in figures.items():
        console.print(TABLES[Part(name)](made))


if __name__ == "__main__":
    typer.run(main)
