"""`python -m oakum_worker profile`: what a way of training would take on this machine, before it is used."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from oakum_worker.errors import SpecError, WorkerError
from oakum_worker.micro_batch_profile import MicroBatchProfile, default_cache, profile_micro_batch
from oakum_worker.spec import read_spec

profile_app = typer.Typer(no_args_is_help=True, help="Look what a way of training takes, before it is used.")

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

SpecArgument = Annotated[Path, typer.Argument(metavar="SPEC", help="Trainer spec.", show_default=False)]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        "--memory-bytes",
        metavar="SIZE",
        help="What one rank may use, such as 2GiB or 500MB.",
        show_default="the device's memory; half of the machine's on a CPU",
    ),
]
StagesOption = Annotated[int, typer.Option("--pipeline-stages", min=1, help="Ranks that a model is spread over.")]
BatchOption = Annotated[
    int | None,
    typer.Option(min=1, help="Samples of a replica in a step.", show_default="global_batch over the fewest ranks"),
]
LargestOption = Annotated[bool, typer.Option("--largest", help="Find, too, how many samples fit at once.")]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Measure, also what was measured before.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@profile_app.callback()
def profile() -> None:
    """Look what a way of training takes, before it is used."""


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
    """Measure which micro-batch trains fastest within the memory there is."""
    try:
        found = measure(spec, memory, pipeline_stages, batch, largest=largest, fresh=fresh)
    except WorkerError as error:
        Console(stderr=True, soft_wrap=True).print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from error
    typer.echo(as_document(found) if as_json else as_text(found))


def measure(
    spec: Path, memory: str | None, stages: int, batch: int | None, *, largest: bool = False, fresh: bool = False
) -> MicroBatchProfile:
    """What the command measures, with a progress bar on a terminal. Raises `SpecError` and `TaskError`."""
    limit_bytes = parse_bytes(memory) if memory is not None else None
    trainer_spec = read_spec(spec)
    errors = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as progress:
        bar = progress.add_task(trainer_spec.name, total=None)
        return profile_micro_batch(
            trainer_spec,
            limit_bytes=limit_bytes,
            stages=stages,
            batch=batch,
            find_largest=largest,
            cache=None if fresh else default_cache(),
            progress=lambda what: progress.update(bar, description=f"{trainer_spec.name}: {what}"),
        )


def parse_bytes(text: str) -> int:
    """`2GiB`, `500 MB`, `1.5g` or plain bytes. Raises `SpecError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = 0
    if found is not None:
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit])
    if size < 1:
        raise SpecError(f"--memory {text!r} is not an amount of memory: give one such as 2GiB, 500MB or 1000000")
    return size


def as_document(found: MicroBatchProfile) -> str:
    """JSON of everything."""
    return json.dumps(asdict(found), indent=2)


def as_text(found: MicroBatchProfile) -> str:
    """A line for each micro-batch, the best one first named."""
    best = found.best
    lines = [
        f"micro_batch: {best.micro_batch}  ({best.num_micro_batches} of them make {found.batch} samples, at "
        f"{best.samples_per_s:,.0f} samples/s)",
        "",
        "micro-batch   number   peak memory     samples/s",
    ]
    fast = {candidate.micro_batch: candidate for candidate in found.candidates}
    for size in sorted({*fast, *found.peak_bytes}):
        peak = found.peak_bytes.get(size)
        memory = f"{peak / 2**20:,.1f} MiB" if peak is not None else ""
        rate = f"{fast[size].samples_per_s:,.0f}" if size in fast else "too large"
        mark = "  *" if size == best.micro_batch else ""
        lines.append(f"{size:11,}{found.batch // size:9,}{memory:>14}{rate:>14}{mark}")
    lines += ["", f"on {found.device}, within {found.limit_bytes / 2**20:,.0f} MiB"]
    if found.stages > 1:
        lines[-1] += f" for each of {found.stages} equal stages"
    if found.largest_at_once is not None:
        lines.append(f"{found.largest_at_once:,} samples fit at once")
    if found.remembered:
        lines.append("measured before; --fresh measures again")
    return "\n".join(lines)
