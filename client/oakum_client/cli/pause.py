"""Commands that stop a trainer for a while, or let it go on: pause, unpause, retry."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, TrainerRef, print_json
from oakum_client.cli.units import count

_LOOK_S = 0.2


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example("oakum pause digits --reason 'waits for data'", "oakum unpause digits"),
)
def pause(
    trainer: TrainerRef,
    reason: Annotated[str, typer.Option(help="Reason, shown wherever the pause is shown.")] = "",
    wait: Annotated[
        float, typer.Option(help="Seconds to wait until it has no node left; 0: return at once.")
    ] = 30.0,
    as_json: JsonFlag = False,
) -> None:
    """Stop a trainer until `oakum unpause`: it writes a checkpoint and gives its nodes back.

    Exit code 1 means that it still had nodes after --wait seconds; the pause stays.
    """
    with connect() as client:
        view = client.pause(trainer, reason)
        deadline_s = time.monotonic() + wait
        while (view.nodes or view.warming) and time.monotonic() < deadline_s:
            time.sleep(_LOOK_S)
            view = client.trainer(view.id)
    if as_json:
        print_json(view)
    elif not view.nodes and not view.warming:
        typer.echo(f"{view.name} is {view.status} at step {count(view.step)} and has no node.")
    if wait and (view.nodes or view.warming):
        raise CommandError(
            f"{view.name} is {view.status}, but still has nodes after {wait:g} s: look at `oakum nodes`"
        )


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum unpause digits"))
def unpause(trainer: TrainerRef, as_json: JsonFlag = False) -> None:
    """End a trainer's pause: the next plan considers it again."""
    from oakum_service.standing import Status

    with connect() as client:
        before = client.trainer(trainer)
        view = client.unpause(before.id)
    if as_json:
        print_json(view)
    elif before.status != Status.PAUSED:
        typer.echo(f"{view.name} was not paused: nothing has changed.")
    else:
        typer.echo(f"{view.name} goes on from step {count(view.step)} as soon as a plan grants it nodes.")


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum retry digits"))
def retry(trainer: TrainerRef, as_json: JsonFlag = False) -> None:
    """Let a failed or cancelled trainer go on from its newest checkpoint; earlier crashes do not count."""
    with connect() as client:
        view = client.retry(trainer)
    if as_json:
        print_json(view)
        return
    step = view.checkpoint_step
    start = "its beginning: it has no checkpoint" if step is None else f"its checkpoint of step {count(step)}"
    typer.echo(f"{view.name} goes on from {start}, as soon as a plan grants it nodes.")
