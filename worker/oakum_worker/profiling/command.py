"""`python -m oakum_worker profile`: measure what memory and time a trainer takes on this machine. Here: the
command `micro-batch` and what all profile commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oakum_worker.errors import WorkerError
from oakum_worker.profiling.grid_profile import GridsProfile
from oakum_worker.profiling.layout_profile import LayoutProfile
from oakum_worker.profiling.micro_batch_profile import MicroBatchProfile, default_cache, profile_micro_batch
from oakum_worker.profiling.options import (
    BatchOption,
    FreshOption,
    JsonOption,
    LargestOption,
    MemoryOption,
    SpecArgument,
    StagesOption,
    parse_bytes,
)
from oakum_worker.spec import read_spec

profile_app = typer.Typer(
    no_args_is_help=True, help="Measure or predict what a way of training costs, before using it."
)


@profile_app.callback()
def profile() -> None:
    """Measure or predict what a way of training costs, before using it."""


@profile_app.command("micro-batch")
def micro_batch(
    spec: SpecArgument,
    memory: MemoryOption = None,
    pipeline_stages: StagesOption = 1,
    batch: BatchOption = None,
    largest: LargestOption = False,
    fresh: FreshOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure which micro-batch trains fastest within a rank's memory."""
    with reported():
        profile = measure(spec, memory, pipeline_stages, batch, largest=largest, fresh=fresh)
    typer.echo(as_document(profile) if as_json else as_text(profile))


def measure(
    spec: Path, memory: str | None, stages: int, batch: int | None, *, largest: bool = False, fresh: bool = False
) -> MicroBatchProfile:
    """Read the spec file and measure its micro-batches, with a progress bar where standard error is a terminal.
    Returns the measurements.

    `memory` is a size such as `2GiB`. Raises `SpecError` for a spec or size that cannot be read, and `TaskError`
    where the task fails or nothing fits.
    """
    limit_bytes = parse_bytes(memory) if memory is not None else None
    trainer_spec = read_spec(spec)
    with progress_bar(trainer_spec.name) as progress:
        return profile_micro_batch(
            trainer_spec,
            limit_bytes=limit_bytes,
            stages=stages,
            batch=batch,
            find_largest=largest,
            cache=None if fresh else default_cache(),
            progress=progress,
        )


@contextmanager
def reported() -> Iterator[None]:
    """Context in which a `WorkerError` ends the command with its message and without a traceback."""
    try:
        yield
    except WorkerError as error:
        Console(stderr=True, soft_wrap=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[str], None]]:
    """Context that shows a moving bar where standard error is a terminal. Yields a function to be called with the
    name of each next step, which the bar then shows after `name`."""
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as progress:
        bar = progress.add_task(name, total=None)
        yield lambda what: progress.update(bar, description=f"{name}: {what}")


def as_document(profile: MicroBatchProfile | LayoutProfile | GridsProfile) -> str:
    """All fields of the profile as indented JSON."""
    return json.dumps(asdict(profile), indent=2)


def as_text(profile: MicroBatchProfile) -> str:
    """The profile as text: the fastest micro-batch, then a table with a line for each micro-batch that was
    measured, then the device and the limits."""
    best = profile.best
    lines = [
        f"micro_batch: {best.micro_batch}  ({best.num_micro_batches} of them make {profile.batch} samples, at "
        f"{best.samples_per_s:,.0f} samples/s)",
        "",
        "micro-batch   number   peak memory     samples/s",
    ]
    fast = {candidate.micro_batch: candidate for candidate in profile.candidates}
    for size in sorted({*fast, *profile.peak_bytes}):
        peak = profile.peak_bytes.get(size)
        memory = f"{peak / 2**20:,.1f} MiB" if peak is not None else ""
        rate = f"{fast[size].samples_per_s:,.0f}" if size in fast else "too large"
        mark = "  *" if size == best.micro_batch else ""
        lines.append(f"{size:11,}{profile.batch // size:9,}{memory:>14}{rate:>14}{mark}")
    lines += ["", f"on {profile.device}, within {profile.limit_bytes / 2**20:,.0f} MiB"]
    if profile.stages > 1:
        lines[-1] += f" for each of {profile.stages} equal stages"
    if profile.largest_at_once is not None:
        lines.append(f"{profile.largest_at_once:,} samples fit at once")
    if profile.largest_batch is not None:
        lines.append(f"batches of up to {profile.largest_batch:,} samples can be trained in micro-batches")
    if profile.remembered:
        lines.append("measured before; --fresh measures again")
    return "\n".join(lines)
