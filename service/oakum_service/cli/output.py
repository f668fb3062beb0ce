"""What commands print: the API's document with --json, a table for people otherwise."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the API's JSON document.")]
TrainerRef = Annotated[str, typer.Argument(metavar="TRAINER", help="Name or id.", show_default=False)]

_PIPE_WIDTH = 240
STATE_STYLES = {
    "waiting": "yellow",
    "starting": "cyan",
    "running": "green",
    "finished": "blue",
    "failed": "red",
    "cancelled": "dim",
}


def console() -> Console:
    """Where tables go. Text of users is never read as markup: it may hold brackets."""
    from rich.console import Console

    # Rich takes a pipe for 80 columns wide and would cut what `grep` looks for.
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(markup=False, highlight=False, emoji=False, width=width)


def table(*columns: str, right: tuple[str, ...] = (), wrapping: tuple[str, ...] = ()) -> Table:
    """An empty table without rules; `right` columns hold numbers, `wrapping` ones sentences."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column not in wrapping,
            overflow="fold" if column in wrapping else "ellipsis",
        )
    return made


def print_json(document: BaseModel, *, indent: int | None = 2) -> None:
    """Print an API document; without indent as one line of a stream."""
    typer.echo(document.model_dump_json(indent=indent))
