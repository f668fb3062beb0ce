"""A trainer's live view: what it does now, until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.live import Live

from oakum_client.cli.output import console, print_json
from oakum_client.cli.screen import figures_of, remarks_of, screen_of, steps_of
from oakum_service.api.schemas.trainers import TrainerView

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient

_PERIOD_S = 1.0


def watch_trainer(client: OakumClient, ref: str, *, as_json: bool) -> int:
    """Show the trainer, again at each change, until it ends. Returns the exit status that stands for its end."""
    screen = console()
    if as_json or not screen.is_terminal:
        view = _print_until_end(client, ref, as_json=as_json)
    else:
        view = _draw_until_end(client, ref)
    return view.state.exit_status


def _draw_until_end(client: OakumClient, ref: str) -> TrainerView:
    with Live(console=console(), auto_refresh=False) as live:
        for view in _views_until_end(client, ref):
            live.update(screen_of(view), refresh=True)
    return view


def _print_until_end(client: OakumClient, ref: str, *, as_json: bool) -> TrainerView:
    """Print a line for each change until the trainer ends, for pipes and log files. Returns its last document."""
    printed: TrainerView | None = None
    for view in _views_until_end(client, ref):
        # These fields change all the time, whether or not anything happens.
        timeless = view.model_copy(update=dict.fromkeys(("time_spent", "pace", "samples_per_s_below")))
        if timeless == printed:
            continue
        printed = timeless
        if as_json:
            print_json(view, indent=None)
        else:
            parts = (view.name, view.status, steps_of(view), figures_of(view), *remarks_of(view))
            typer.echo("  ".join(part for part in parts if part))
    return view


def _views_until_end(client: OakumClient, ref: str) -> Iterator[TrainerView]:
    """The trainer's document once a second, the last one after its end."""
    while True:
        view = client.trainer(ref)
        yield view
        if view.state.ended:
            return
        time.sleep(_PERIOD_S)
