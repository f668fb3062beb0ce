"""A trainer's live view: what it does now, until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.live import Live

from oakum_service.api.schemas import TrainerView
from oakum_service.cli.output import console, print_json
from oakum_service.cli.screen import now_of, screen_of, steps_of
from oakum_service.states import TrainerState

if TYPE_CHECKING:
    from oakum_service.client import OakumClient

_PERIOD_S = 1.0


def watch_trainer(client: OakumClient, ref: str, *, as_json: bool) -> int:
    """Show the trainer until it ends; the exit code says whether it finished."""
    screen = console()
    if as_json or not screen.is_terminal:
        view = _stream(client, ref, as_json=as_json)
    else:
        view = _live(client, ref)
    return 0 if view.state == TrainerState.FINISHED else 1


def _live(client: OakumClient, ref: str) -> TrainerView:
    with Live(console=console(), auto_refresh=False) as live:
        for view in _views(client, ref):
            live.update(screen_of(view), refresh=True)
    return view


def _stream(client: OakumClient, ref: str, *, as_json: bool) -> TrainerView:
    """One line for each change, for pipes and log files."""
    shown: TrainerView | None = None
    for view in _views(client, ref):
        # Its time goes on whether or not anything happens.
        if view.model_copy(update={"time_spent": None}) == shown:
            continue
        shown = view.model_copy(update={"time_spent": None})
        if as_json:
            print_json(view, indent=None)
        else:
            parts = (view.name, view.state, steps_of(view), now_of(view), view.message)
            typer.echo("  ".join(part for part in parts if part))
    return view


def _views(client: OakumClient, ref: str) -> Iterator[TrainerView]:
    """The trainer once a second, its end last."""
    while True:
        view = client.trainer(ref)
        yield view
        if view.state.ended:
            return
        time.sleep(_PERIOD_S)
