"""Options of `python -m oakum_worker profile` and of `oakum profile`. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

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
StagesOption = Annotated[int, typer.Option("--pipeline-stages", min=1, help="Ranks that a model is spread over.")]
BatchOption = Annotated[
    int | None,
    typer.Option(min=1, help="Samples of a replica in a step.", show_default="global_batch over the fewest ranks"),
]
LargestOption = Annotated[
    bool, typer.Option("--largest", help="Find, too, how many samples fit at once, and how large a batch can be.")
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Measure, also what was measured before.")]
NodesOption = Annotated[
    int | None, typer.Option(min=1, help="The most nodes to look at.", show_default="max_nodes of the spec")
]
LatencyOption = Annotated[
    float, typer.Option(min=0, max=1e9, help="Of a message between two nodes, in microseconds.")
]
BandwidthOption = Annotated[
    str, typer.Option(metavar="SIZE", help="Bytes a second between two nodes, such as 1GB or 12.5GB.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_bytes(text: str, option: str = "--memory") -> int:
    """`2GiB`, `500 MB`, `1.5g` or plain bytes. Raises `SpecError` for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = 0
    if found is not None:
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit])
    if size < 1:
        raise SpecError(f"{option} {text!r} is not a number of bytes: give one such as 2GiB, 500MB or 1000000")
    return size
