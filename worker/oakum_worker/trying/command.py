"""`python -m oakum_worker try`: run a trainer's code on this machine, without a service, to find what would
fail."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from oakum_worker.profiling.command import reported
from oakum_worker.profiling.options import SpecArgument
from oakum_worker.spec import read_spec
from oakum_worker.trying.lease import as_lines, end_with_whoever_asks, leave, own_output


def try_command(
    spec: SpecArgument,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each check as it begins and ends.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FOLDER", help="Also load the newest checkpoint in this folder."),
    ] = None,
    leased: Annotated[bool, typer.Option("--leased", hidden=True)] = False,
) -> None:
    """Try a trainer out on this machine: import, build, read, one forward and backward pass, memory.

    Prints what came of each check, and ends with status 2 if one failed. Writes nothing.
    """
    with reported():
        document = read_spec(spec)
    out = own_output() if as_json else sys.stdout
    tell = as_lines(out) if as_json else _as_text(Console(file=out, soft_wrap=True, highlight=False))
    if leased:
        end_with_whoever_asks(tell)
    from oakum_worker.trying.trial import try_out

    leave(0 if try_out(document, tell, state) else 2, out)


def _as_text(console: Console) -> Any:
    def tell(event: dict[str, Any]) -> None:
        if event["state"] == "failed":
            console.print(f"failed: {event['message']}", markup=False, style="red")
        elif event["state"] == "done":
            detail = f"  {event['detail']}" if event["detail"] else ""
            console.print(f"{event['seconds']:7.2f} s  {event['check']}{detail}", markup=False)
        elif event["state"] == "facts":
            for remark in (*event["facts"]["remarks"], event["facts"]["memory_complaint"]):
                if remark is not None:
                    console.print(f"note: {remark}", markup=False)

    return tell
