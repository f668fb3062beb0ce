"""`oakum events`: what has happened on the cluster, and what happens now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import CLUSTER, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, print_json
from oakum_client.cli.units import clock

if TYPE_CHECKING:
    from oakum_service.api.schemas.events import Event


@app.command(rich_help_panel=CLUSTER, epilog=example("oakum events --follow", "oakum events --limit 200 --json"))
def events(
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print new events as they happen; with --json, one per line."),
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of past events to begin with.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Print events: jobs, holes, plans, generations."""
    with connect() as client:
        recent = client.recent_events(limit)
        if as_json and not follow:
            print_json(recent)
            return
        newest = 0
        for event in sorted(recent.events, key=lambda event: event.id):
            _print_event(event, as_json=as_json)
            newest = event.id
        if follow:
            for event in client.events(after=newest):
                _print_event(event, as_json=as_json)


def _print_event(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json(event, indent=None)
    else:
        typer.echo(f"{clock(event.at)}  {event.kind:<18}  {event.subject:<16}  {event.message}")
