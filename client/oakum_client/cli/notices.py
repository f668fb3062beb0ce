"""`oakum notices`: lists which notices were sent to whom, and tests a recipient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json, table
from oakum_client.cli.units import clock
from oakum_worker.errors import fault_of

if TYPE_CHECKING:
    from oakum_service.api.schemas.notices import NoticeView

notices_app = typer.Typer(
    no_args_is_help=True, help="Show and test the notices that webhooks and e-mails bring about trainers."
)
app.add_typer(notices_app, name="notices", rich_help_panel=TRAINERS)


@notices_app.command("list", epilog=example("oakum notices list", "oakum notices list digits --json"))
def list_notices(
    trainer: Annotated[
        str | None,
        typer.Argument(
            metavar="[TRAINER]", help="Name or id of a trainer; by default all trainers.", show_default=False
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the last notices: to whom they went, and whether they were accepted."""
    with connect() as client:
        document = client.notices(trainer)
    if as_json:
        print_json(document)
        return
    if not document.notices:
        typer.echo("No notices. A spec's `notify:` says who is told what.")
        return
    listing = table("AT", "TRAINER", "EVENT", "TO", "OUTCOME")
    for notice in document.notices:
        listing.add_row(clock(notice.created_at), notice.trainer, notice.event, notice.recipient, _outcome(notice))
    console().print(listing)


def _outcome(notice: NoticeView) -> str:
    tries = "1 try" if notice.attempts == 1 else f"{notice.attempts} tries"
    if notice.sent_at is not None:
        return f"sent {clock(notice.sent_at)}" + (f" after {tries}" if notice.attempts > 1 else "")
    if notice.next_at is None:
        return f"given up after {tries}: {notice.error}"
    return f"{tries}, next {clock(notice.next_at)}: {notice.error}" if notice.attempts else "about to be sent"


@notices_app.command(
    "test",
    epilog=example(
        "oakum notices test --webhook https://hooks.example.org/x",
        "oakum notices test --email ada@example.org",
    ),
)
def try_recipient(
    webhook: Annotated[str | None, typer.Option(help="Web address to post to.", show_default=False)] = None,
    email: Annotated[str | None, typer.Option(help="E-mail address to send to.", show_default=False)] = None,
    as_json: JsonFlag = False,
) -> None:
    """Have the service send a test notice now, and show the outcome."""
    from pydantic import ValidationError

    from oakum_service.api.schemas.notices import NoticeTest

    if (webhook is None) == (email is None):
        raise typer.BadParameter("give one of --webhook and --email")
    try:
        request = NoticeTest(webhook=webhook, email=email)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(fault_of(item) for item in error.errors())) from error
    with connect() as client:
        outcome = client.try_recipient(request)
    if as_json:
        print_json(outcome)
    elif outcome.sent:
        typer.echo(f"Sent: {outcome.recipient} has taken it.")
    if not outcome.sent:
        raise CommandError(f"not sent to {outcome.recipient}: {outcome.error}")
