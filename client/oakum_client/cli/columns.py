"""Listings whose columns and order the user chooses, as with `squeue` and `kubectl`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import typer

from oakum_client.cli.output import table

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = TypeVar("Row")
ALL = "wide"
ColumnsOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="COLUMNS",
        help=f"Columns to print, such as name,state; '+loss,user' for these, too; '{ALL}' for all.",
        show_default=False,
    ),
]
SortOption = Annotated[
    str | None,
    typer.Option("--sort", metavar="COLUMN", help="Order of the rows; '-name' is falling.", show_default=False),
]


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a listing."""

    title: str
    cell: Callable[[Row], str | Text]
    """What is printed of a row."""
    key: Callable[[Row], Any] | None = None
    """What rows are sorted by, None last; by default the printed text."""
    is_number: bool = False


class Listing(Generic[Row]):
    """The columns that a command can print, and those that it prints unless told otherwise."""

    def __init__(self, columns: Mapping[str, Column[Row]], usual: Sequence[str]) -> None:
        """`columns`: name -> column; `usual`: names of columns that fit into 80 characters together."""
        self._columns = columns
        self._usual = [*usual]

    def table(self, rows: Sequence[Row], columns: str | None = None, sort: str | None = None) -> Table:
        """A table of the rows. `columns` and `sort` are what the options of these names say. Raises typer's
        `BadParameter` for a column that there is not."""
        names = self.names(columns)
        chosen = [self._columns[name] for name in names]
        listing = table(
            *(column.title for column in chosen),
            right=tuple(column.title for column in chosen if column.is_number),
        )
        for row in self._sorted(rows, sort):
            listing.add_row(*(column.cell(row) for column in chosen))
        return listing

    def check(self, columns: str | None, sort: str | None) -> None:
        """Raise typer's `BadParameter` unless these options can be obeyed: before the service is asked."""
        self.names(columns)
        self._sorted((), sort)

    def names(self, text: str | None) -> list[str]:
        """The names of the columns that the option's text asks for."""
        if text is None:
            return self._usual
        if text.strip() == ALL:
            return [*self._columns]
        names = [self._known(name.strip().lower(), "--output") for name in text.removeprefix("+").split(",")]
        return [*self._usual, *names] if text.startswith("+") else names

    def _sorted(self, rows: Sequence[Row], sort: str | None) -> list[Row]:
        if sort is None:
            return [*rows]
        column = self._columns[self._known(sort.strip().lower().removeprefix("-"), "--sort")]
        key = column.key or (lambda row: str(column.cell(row)))
        with_key = [row for row in rows if key(row) is not None]
        without_key = [row for row in rows if key(row) is None]
        return sorted(with_key, key=key, reverse=sort.strip().startswith("-")) + without_key

    def _known(self, name: str, option: str) -> str:
        if name in self._columns:
            return name
        near = difflib.get_close_matches(name, self._columns, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise typer.BadParameter(
            f"there is no column {name!r}: expected some of {', '.join(self._columns)}{hint}", param_hint=option
        )
