"""`oakum annotate`: tags and notes of a trainer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from oakum_client.cli.app import TRAINERS, app, example
from oakum_client.cli.output import JsonFlag, TrainerRef, print_json
from oakum_client.cli.trainer_changes import change_trainer


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum annotate digits --tag baseline --untag draft",
        "oakum annotate digits --notes 'warm-up twice as long'",
        "oakum annotate digits --notes - < notes.txt",
    ),
)
def annotate(
    trainer: TrainerRef,
    tag: Annotated[list[str] | None, typer.Option("--tag", "-t", help="Tag to add; may be repeated.")] = None,
    untag: Annotated[list[str] | None, typer.Option(help="Tag to take away; may be repeated.")] = None,
    notes: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Notes in place of the old ones; '' for none, - for stdin.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a trainer's tags and notes, also after its end. Training goes on as it is."""
    changes = {
        "add_tags": tag or None,
        "remove_tags": untag or None,
        "notes": sys.stdin.read().rstrip() if notes == "-" else notes,
    }
    view = change_trainer(trainer, changes, "--tag, --untag or --notes")
    if as_json:
        print_json(view)
        return
    tags = f"the tags {', '.join(view.spec.tags)}" if view.spec.tags else "no tag"
    typer.echo(f"{view.name} has {tags} and {'notes' if view.spec.notes else 'no notes'}.")
