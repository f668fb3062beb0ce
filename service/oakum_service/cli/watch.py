"""A trainer's live view: what it does now, until it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oakum_service.api.schemas import TrainerView
from oakum_service.cli.output import STATE_STYLES, console, print_json
from oakum_service.cli.units import count, decimal, duration, rate
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


def progress_lines(view: TrainerView) -> RenderableType:
    """Name and state, a bar, what it does now, and why it has its size."""
    title = Text.assemble((view.name, "bold"), "  ", (view.state, STATE_STYLES.get(view.state, "")))
    bar = Table.grid(padding=(0, 2, 0, 0))
    bar.add_row(ProgressBar(total=view.total_steps or 1, completed=view.step, width=40), Text(_steps(view)))
    lines: list[RenderableType] = [title, bar, Text(_now(view))]
    if view.message:
        lines.append(Text(view.message, style="red" if view.state == TrainerState.FAILED else ""))
    if view.reason and not view.state.ended:
        lines.append(Text(view.reason, style="dim"))
    return Group(*lines)


def _live(client: OakumClient, ref: str) -> TrainerView:
    with Live(console=console(), auto_refresh=False) as live:
        for view in _views(client, ref):
            live.update(progress_lines(view), refresh=True)
    return view


def _stream(client: OakumClient, ref: str, *, as_json: bool) -> TrainerView:
    """One line for each change, for pipes and log files."""
    shown: TrainerView | None = None
    for view in _views(client, ref):
        if view == shown:
            continue
        shown = view
        if as_json:
            print_json(view, indent=None)
        else:
            parts = (view.name, view.state, _steps(view), _now(view), view.message)
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


def _steps(view: TrainerView) -> str:
    if not view.total_steps:
        return f"step {count(view.step)}"
    text = f"{count(view.step)} / {count(view.total_steps)} steps ({view.step / view.total_steps:.1%})"
    if view.state == TrainerState.RUNNING and view.samples_per_s:
        left_s = (view.total_steps - view.step) * view.spec.global_batch / view.samples_per_s
        text += f", about {duration(left_s)} left"
    return text


def _now(view: TrainerView) -> str:
    nodes = f"{len(view.nodes)} nodes"
    if len(view.granted) != len(view.nodes):
        nodes += f" ({len(view.granted)} granted)"
    return (
        f"loss {decimal(view.loss)}   {rate(view.samples_per_s)} samples/s   {nodes}   "
        f"generation {view.generation}   epoch {view.epoch}"
    )
