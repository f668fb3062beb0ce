"""`oakum wait`: waits until trainers have ended, for scripts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import TRAINERS, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, TrainerRefs, print_json
from oakum_client.cli.units import count, duration, parse_duration

if TYPE_CHECKING:
    from oakum_service.api.schemas.trainers import TrainerView

_TIMED_OUT = 124
"""Exit code after a timeout, the same as that of `timeout`."""


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example("oakum wait digits", "oakum wait a b c --any --timeout 2h && echo one has finished"),
)
def wait(
    trainers: TrainerRefs,
    any_: Annotated[bool, typer.Option("--any", help="Return as soon as the first trainer has ended.")] = False,
    timeout: Annotated[str | None, typer.Option(metavar="TIME", help="Give up after 90s, 15m, 2h ...")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until trainers have ended.

    Exit codes: 0 all have finished (with --any: the first one has), 1 one failed, 3 one diverged, 4 one was
    cancelled, 124 not ended in time. Of several ends the first in this order counts: failed, diverged, cancelled.
    """
    until = None if timeout is None else time.monotonic() + parse_duration(timeout)
    from oakum_client.trainer_ends import wait_for_ends

    with connect() as client:
        ended, left = wait_for_ends(client, trainers, until, first_only=any_)
        if as_json:
            from oakum_service.api.schemas.trainers import TrainerList

            print_json(TrainerList(trainers=ended))
        else:
            for view in ended:
                _print_end(view)
    if left and not (any_ and ended):
        typer.echo(f"oakum: not ended within {timeout}: {', '.join(left)}", err=True)
        raise typer.Exit(_TIMED_OUT)
    raise typer.Exit(min((view.state.exit_status for view in ended if view.state.exit_status), default=0))


def _print_end(view: TrainerView) -> None:
    message = f": {view.message}" if view.message else ""
    took = (
        "" if view.ended_at is None else f", {duration(view.ended_at - view.submitted_at)} after it was submitted"
    )
    typer.echo(f"{view.name} is {view.state} at step {count(view.step)}{took}{message}")
