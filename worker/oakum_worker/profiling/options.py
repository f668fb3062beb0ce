"""Options of `python -m oakum_worker profile` and of `oakum profile`. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from oakum_worker.errors import SpecError

_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

SpecArgument = Annotated[
    Path, typer.Argument(metavar="SPEC", help="Trainer spec, YAML or JSON.", show_default=False)
]
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
StagesOption = Annotated[
    int, typer.Option("--pipeline-stages", min=1, help="Number of ranks that the model is spread over.")
]
BatchOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Samples that a replica computes in a step.", show_default="global_batch over the fewest ranks"
    ),
]
LargestOption = Annotated[
    bool, typer.Option("--largest", help="Also find how many samples fit at once, and how large a batch can be.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Measure again what was measured before.")]
NodesOption = Annotated[
    int | None,
    typer.Option(min=1, help="Largest number of nodes to predict for.", show_default="max_nodes of the spec"),
]
LatencyOption = Annotated[
    float, typer.Option(min=0, max=1e9, help="Latency of a message between two nodes, in microseconds.")
]
BandwidthOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Bandwidth between two nodes in bytes/s, such as 1GB or 12.5GB.")
]
HiddenOption = Annotated[int, typer.Option(min=1, help="Hidden units.", show_default=False)]
StepsOption = Annotated[int, typer.Option(min=1, help="Time steps of a sequence.")]
CellOption = Annotated[Literal["lstm", "gru"], typer.Option(help="Kind of the layer.")]
InputOption = Annotated[
    int | None, typer.Option(min=1, help="Features of the inputs.", show_default="as many as hidden units")
]
RnnBatchOption = Annotated[int, typer.Option("--batch", min=1, help="Sequences that are computed at once.")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(min=1, max=1024, help="Largest number of threads to try.", show_default="torch's number"),
]
TypeOption = Annotated[Literal["float32", "float64"], typer.Option("--dtype", help="Number type of the layer.")]
SecondsOption = Annotated[
    float, typer.Option(min=0, help="Seconds for timing all choices. Each choice is timed at least once.")
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep/--no-keep", help="Compute layers of this size by the fastest choice from now on."),
]
ChipOption = Annotated[
    str | None,
    typer.Option(
        metavar="UNITSxRV",
        help="Instead, model an accelerator with UNITS vector units of RV numbers each, such as 256x16.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_bytes(text: str, option: str = "--memory") -> int:
    """The number of bytes that `text` tells: `2GiB` (powers of 1024), `500 MB` or `1.5g` (powers of 1000), or a
    plain number. Raises `SpecError`, which names `option`, for anything else and for less than 1 byte."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = 0
    if match is not None:
        number, unit, binary = match.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit])
    if size < 1:
        raise SpecError(f"{option} {text!r} is not a number of bytes: give one such as 2GiB, 500MB or 1000000")
    return size


def parse_chip(text: str) -> tuple[int, int]:
    """Vector units, and numbers in a vector, of `256x16`. Raises `SpecError` for anything else."""
    match = re.fullmatch(r"([1-9]\d{0,6})x([1-9]\d{0,6})", text.strip())
    if match is None:
        raise SpecError(f"--chip {text!r} is not UNITSxRV: give one such as 256x16")
    return int(match[1]), int(match[2])
