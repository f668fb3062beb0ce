"""`oakum what-if`: the plan that would be made now, or under other circumstances."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oakum_client.cli.app import CLUSTER, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, console, print_json, table
from oakum_client.cli.submit import read_all
from oakum_solver.wording import counted

if TYPE_CHECKING:
    from oakum_service.api.schemas.plans import SupposedAllocation, WhatIfView

_CHANGEABLE = {"min_nodes": int, "max_nodes": int, "weight": float, "priority": int}


@app.command(
    "what-if",
    rich_help_panel=CLUSTER,
    epilog=example(
        "oakum what-if", "oakum what-if --add big.yaml --drain-count 8", "oakum what-if --set a:max_nodes=4"
    ),
)
def what_if(
    add: Annotated[
        list[Path] | None, typer.Option(metavar="SPEC", help="A trainer that would be submitted.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(metavar="TRAINER", help="A trainer that would end.")] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="TRAINER:FIELD=VALUE", help="Another min_nodes, max_nodes, weight or priority."
        ),
    ] = None,
    drain: Annotated[list[str] | None, typer.Option(metavar="NODE", help="A node that nobody could use.")] = None,
    drain_count: Annotated[int, typer.Option(min=0, help="Number of further such nodes, free ones first.")] = 0,
    objective: Annotated[str | None, typer.Option(help="Another objective: a name or an expression.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the plan that would be made now, or under other circumstances. Nothing is changed.

    Each option but --drain-count and --objective may be given several times.
    """
    from oakum_service.api.schemas.plans import WhatIfRequest

    request = WhatIfRequest.model_validate(
        {
            "add": [spec.model_dump(mode="json", exclude_unset=True) for spec in read_all(add or []).values()],
            "remove": remove or [],
            "change": _changes(change or []),
            "drain": drain or [],
            "drain_count": drain_count,
            "objective": objective,
        }
    )
    with connect() as client:
        view = client.preview(request)
    if as_json:
        print_json(view)
    else:
        _print_plan(view)


def _changes(texts: list[str]) -> list[dict[str, Any]]:
    """The changes of each trainer that texts of the form TRAINER:FIELD=VALUE name."""
    changes: dict[str, dict[str, Any]] = {}
    for text in texts:
        trainer, _, setting = text.rpartition(":")
        name, _, value = setting.partition("=")
        kind = _CHANGEABLE.get(name)
        if not trainer or kind is None:
            raise CommandError(
                f"--set {text}: expected TRAINER:FIELD=VALUE with {', '.join(_CHANGEABLE)} as FIELD"
            )
        try:
            changes.setdefault(trainer, {"trainer": trainer})[name] = kind(value)
        except ValueError as error:
            raise CommandError(f"--set {text}: {value!r} is no number for {name}") from error
    return list(changes.values())


def _print_plan(view: WhatIfView) -> None:
    screen = console()
    screen.print(
        f"Objective {view.objective}. {view.summary} {counted(view.num_idle, 'idle node')} to plan with. "
        "Nothing was changed."
    )
    if view.held:
        screen.print("The cluster is held: no plan has an effect before `oakum resume`.")
    if not view.allocations:
        screen.print("No trainer wants nodes.")
        return
    listing = table("TRAINER", "NOW", "THEN", "CHANGE", "REASON", right=("NOW", "THEN"))
    for allocation in view.allocations:
        listing.add_row(
            allocation.trainer,
            "new" if allocation.is_new else str(allocation.nodes_now),
            *_cells_after(allocation),
            allocation.reason,
        )
    screen.print()
    screen.print(listing)


def _cells_after(allocation: SupposedAllocation) -> tuple[str, str]:
    changes = [f"+{node}" for node in allocation.gained] + [f"-{node}" for node in allocation.lost]
    return str(allocation.nodes_then), " ".join(changes) or "-"
