"""`oakum audit`: who did what, from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.admin import SERVICE
from oakum_client.cli.app import app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json, table
from oakum_client.cli.units import clock

if TYPE_CHECKING:
    from oakum_service.api.schemas.audit import AuditEntry


@app.command(rich_help_panel=SERVICE, epilog=example("oakum audit --subject night-run", "oakum audit --by alice"))
def audit(
    by: Annotated[str | None, typer.Option(help="Acts of this user only.")] = None,
    subject: Annotated[str | None, typer.Option(help="Acts on this trainer, user or token only.")] = None,
    action: Annotated[str | None, typer.Option(help="Such as trainer.cancelled, or refused.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=5000, help="Number of acts.")] = 50,
    before: Annotated[int | None, typer.Option(help="Only acts with a lower number.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print who did what, and from where: the newest acts, the newest last.

    Administrators see all acts; others see their own, and those on their trainers and tokens.
    """
    with connect() as client:
        log = client.audit(actor=by, subject=subject, action=action, limit=limit, before=before)
    if as_json:
        print_json(log)
        return
    listing = table("NO", "TIME", "WHO", "ROLE", "FROM", "DID", "TO", "DETAILS")
    for entry in reversed(log.entries):
        listing.add_row(
            str(entry.id),
            clock(entry.at),
            entry.actor,
            entry.role,
            entry.address or "this machine",
            entry.action,
            entry.subject,
            _details(entry),
        )
    console().print(listing)


def _details(entry: AuditEntry) -> str:
    return ", ".join(f"{name} {value}" for name, value in entry.details.items() if name != "id" and value != "")
