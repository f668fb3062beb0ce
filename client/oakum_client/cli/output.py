"""What commands print: the API's JSON document with --json, otherwise a table for people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.completion import complete_trainer

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console
    from rich.table import Table

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the API's JSON document.")]
TrainerRef = Annotated[
    str,
    typer.Argument(metavar="TRAINER", help="Name or id.", show_default=False, autocompletion=complete_trainer),
]
TrainerRefs = Annotated[
    list[str],
    typer.Argument(
        metavar="TRAINER...", help="Names or ids.", show_default=False, autocompletion=complete_trainer
    ),
]

STATE_STYLES = {
    "waiting": "yellow",
    "starting": "cyan",
    "running": "green",
    "finished": "blue",
    "failed": "red",
    "diverged": "red",
    "cancelled": "dim",
    "held": "yellow",
    "paused": "yellow",
    "cancelling": "dim",
}


def console() -> Console:
    """The console for tables. It never reads users' text as markup, which may hold brackets.

    On a terminal everything fits its width, or `COLUMNS` if that is set. Elsewhere each row of a table stays whole
    on one line, so that `grep` finds it; other lines are wrapped if `COLUMNS` is set.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(markup=False, highlight=False, emoji=False)
    from oakum_client.cli.whole_lines import WholeLines

    return WholeLines(markup=False, highlight=False, emoji=False)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table without rules, in which nothing is cut; `right`: columns of numbers. Where a terminal is
    narrow, texts go on in the next line and numbers do not."""
    from rich.table import Table

    empty = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        empty.add_column(
            column,
            justify="right" if column in right else "left",
            no_wrap=column in right,
            overflow="fold",
        )
    return empty


def print_json(document: BaseModel, *, indent: int | None = 2) -> None:
    """Print an API document; with `indent=None` on one line, as in a stream."""
    typer.echo(document.model_dump_json(indent=indent))
