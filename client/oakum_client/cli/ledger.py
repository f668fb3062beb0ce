"""`oakum ledger`: what users' trainers had of the cluster, month by month."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import app, example
from oakum_client.cli.columns import Column, ColumnsOption, Listing, SortOption
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json

if TYPE_CHECKING:
    from oakum_service.api.schemas.ledger import LedgerEntry

_LOST = ("warm_up", "grow", "shrink", "loss", "repeated")


@app.command(
    rich_help_panel=SERVICE,
    epilog=example("oakum ledger", "oakum ledger --month 2026-11 --months 3 --csv", "oakum ledger --user alice"),
)
def ledger(
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="Last month; default the present one.")
    ] = None,
    months: Annotated[int, typer.Option(min=1, max=24, help="Number of months, up to that one.")] = 1,
    user: Annotated[str | None, typer.Option(help="Rows of this user only.")] = None,
    columns: ColumnsOption = None,
    sort: SortOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the node-hours that each user's trainers had in each month (UTC), how many they trained in, what was
    lost (by which cause: `-o wide`), how long foreground jobs waited for them, and how their fragments ended.

    Administrators see all users, others themselves.
    """
    if as_csv and as_json:
        raise typer.BadParameter("give one of --csv and --json")
    _LISTING.check(columns, sort)
    with connect() as client:
        document = client.ledger(month=month, months=months, user=user)
    if as_json:
        print_json(document)
    elif as_csv:
        _write_csv(document.entries)
    else:
        console().print(_LISTING.table(document.entries, columns, sort))


def _hours_lost(entry: LedgerEntry) -> float:
    return math.fsum(getattr(entry, f"{cause}_node_h") for cause in _LOST)


def _hours(title: str, hours: Callable[[LedgerEntry], float]) -> Column[LedgerEntry]:
    return Column(title, lambda entry: f"{hours(entry):,.2f}", key=hours, is_number=True)


_LISTING: Listing[LedgerEntry] = Listing(
    {
        "month": Column("MONTH", lambda entry: entry.month),
        "user": Column("USER", lambda entry: entry.user or "-"),
        "lent": _hours("LENT (node-h)", lambda entry: entry.lent_node_h),
        "trained": _hours("TRAINED", lambda entry: entry.trained_node_h),
        "lost": _hours("LOST", _hours_lost),
        **{
            cause.replace("_", "-"): _hours(cause.replace("_", " ").upper(), attrgetter(f"{cause}_node_h"))
            for cause in _LOST
        },
        "delay": Column(
            "DELAYED (s)",
            lambda entry: f"{entry.foreground_delay_s:,.1f}",
            key=lambda entry: entry.foreground_delay_s,
            is_number=True,
        ),
        "ends": Column(
            "ENDS OF FRAGMENTS",
            lambda entry: ", ".join(f"{number} {cause}" for cause, number in _ends_by_number(entry)) or "-",
            key=lambda entry: sum(entry.ends.values()),
        ),
    },
    usual=("month", "user", "lent", "trained", "lost", "delay", "ends"),
)


def _write_csv(entries: list[LedgerEntry]) -> None:
    from oakum_service.api.schemas.ledger import LedgerEntry

    writer = csv.DictWriter(sys.stdout, [*LedgerEntry.model_fields], lineterminator="\n")
    writer.writeheader()
    for entry in entries:
        ends = ";".join(f"{cause}={number}" for cause, number in _ends_by_number(entry))
        writer.writerow(entry.model_dump() | {"ends": ends})


def _ends_by_number(entry: LedgerEntry) -> list[tuple[str, int]]:
    """(cause, number of ends), the most frequent first."""
    return sorted(entry.ends.items(), key=lambda each: (-each[1], each[0]))
