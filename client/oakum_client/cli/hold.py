"""`oakum hold` and `oakum resume`: the kill switch."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from oakum_client.cli.app import CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json
from oakum_solver.wording import counted

CLUSTER = "Cluster"
_LOOK_S = 0.2


@app.command(
    rich_help_panel=CLUSTER, epilog=example("oakum hold --reason 'maintenance at 8'", "oakum hold --wait 60")
)
def hold(
    reason: Annotated[str, typer.Option(help="Reason, shown wherever the hold is shown.")] = "",
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until no fragment is left; 0: return at once.")
    ] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Give every node back, with a checkpoint of each trainer, and launch nothing until `oakum resume`.

    Exit code 1 means that fragments were left after --wait seconds; the hold stays.
    """
    with connect() as client:
        view = client.hold(reason)
        deadline_s = time.monotonic() + wait
        num_fragments = client.cluster().num_fragments
        while num_fragments and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            num_fragments = client.cluster().num_fragments
    if as_json:
        print_json(view)
    elif not num_fragments:
        console().print("Held: no fragment is left. `oakum resume` lets the planner launch again.")
    if wait and num_fragments:
        rest = counted(num_fragments, "fragment")
        raise CommandError(f"held, but nodes still run {rest} after {wait:g} s: look at `oakum nodes`")


@app.command(rich_help_panel=CLUSTER, epilog=example("oakum resume"))
def resume(as_json: JsonFlag = False) -> None:
    """End a hold."""
    with connect() as client:
        before = client.held()
        view = client.resume()
    if as_json:
        print_json(view)
    elif before.held:
        console().print("The planner launches again.")
    else:
        console().print("There was no hold: nothing has changed.")
