"""Commands for trainers: ps, show, explain, scale, cancel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_service.cli.app import TRAINERS, app, example
from oakum_service.cli.connection import connect
from oakum_service.cli.output import STATE_STYLES, JsonFlag, TrainerRef, console, print_json, table
from oakum_service.cli.units import age, clock, count, decimal, duration

if TYPE_CHECKING:
    from oakum_service.api.schemas.trainers import TrainerView


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum ps", "oakum ps --all --json"))
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="List trainers that have ended, too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List trainers: status, nodes, range of nodes, progress, how long they have had the status, and why."""
    from oakum_service.api.schemas.trainers import TrainerList

    with connect() as client:
        listing = client.trainers()
    trainers = listing.trainers
    shown = [trainer for trainer in trainers if everything or not trainer.state.ended]
    if as_json:
        print_json(TrainerList(trainers=shown, hold=listing.hold, fault=listing.fault))
        return
    if listing.fault is not None:
        console().print(f"{listing.fault}.\n", style="red", markup=False)
    if listing.hold is not None:
        console().print(f"{listing.hold.sentence}\n", style="yellow")
    if shown:
        _print_trainers(shown)
    elif trainers:
        typer.echo(f"No trainer is live; {len(trainers)} have ended (`oakum ps --all`).")
    else:
        typer.echo("No trainers. Hand one in with `oakum submit SPEC.yaml`.")


def _print_trainers(trainers: list[TrainerView]) -> None:
    from rich.text import Text

    from oakum_service.cli.screen import left_of, rate_of, share_of, size_of, state_for, why_of

    numbers = ("NODES", "OF", "STEP", "DONE", "LOSS", "SAMPLES/S", "FOR", "LEFT", "AGE")
    listing = table("NAME", "STATE", *numbers, "WHY", right=numbers, wrapping=("WHY",))
    for trainer in trainers:
        share = share_of(trainer)
        listing.add_row(
            Text(trainer.name),
            Text(trainer.status, style=STATE_STYLES.get(trainer.status, "")),
            str(len(trainer.nodes)),
            size_of(trainer),
            count(trainer.step),
            "-" if share is None else f"{share:.0%}",
            decimal(trainer.loss),
            rate_of(trainer),
            state_for(trainer),
            left_of(trainer),
            age(trainer.submitted_at),
            Text(why_of(trainer)),
        )
    console().print(listing)


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum show digits", "oakum show digits --watch"))
def show(
    trainer: TrainerRef,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the view until the trainer ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one trainer: its progress, its size, and why it has that size."""
    with connect() as client:
        if watch:
            from oakum_service.cli.watch import watch_trainer

            raise typer.Exit(watch_trainer(client, trainer, as_json=as_json))
        view = client.trainer(trainer)
    if as_json:
        print_json(view)
    else:
        _print_trainer(view)


def _print_trainer(view: TrainerView) -> None:
    from oakum_service.cli.screen import screen_of

    screen = console()
    screen.print(screen_of(view))
    screen.print()
    facts = table("", "", wrapping=("",))
    facts.show_header = False
    for name, value in _facts(view):
        facts.add_row(name, value)
    screen.print(facts)


def _facts(view: TrainerView) -> list[tuple[str, str]]:
    from oakum_service.cli.screen import bounds_of

    spec = view.spec
    facts = [
        ("Id", view.id),
        ("Script" if spec.script else "Entrypoint", spec.code),
        ("Submitted", f"{clock(view.submitted_at)} ({age(view.submitted_at)} ago){_by(view)}"),
        ("Bounds", f"{bounds_of(spec)}, weight {spec.weight:g}"),
        ("Priority", str(spec.priority or "")),
        ("Deadline", _deadline(view)),
        ("Exact", "" if spec.exact else "no, by `exact: false`: its results may depend on its nodes"),
        ("Samples", _samples(view)),
        ("Rescales", _rescales(view)),
        ("Steps at", ", ".join(f"{_nodes(n)}: {count(s)}" for n, s in sorted(view.steps_at_size.items()))),
    ]
    return [(name, value) for name, value in facts if value]


def _by(view: TrainerView) -> str:
    return "" if view.user is None else f" by {view.user}"


def _deadline(view: TrainerView) -> str:
    if view.spec.deadline is None:
        return ""
    at = view.spec.deadline.timestamp()
    left_s = at - time.time()
    return f"{clock(at)} ({f'in {duration(left_s)}' if left_s > 0 else f'{duration(-left_s)} ago'})"


def _samples(view: TrainerView) -> str:
    return (
        count(view.samples)
        if view.total_samples is None
        else f"{count(view.samples)} of {count(view.total_samples)}"
    )


def _rescales(view: TrainerView) -> str:
    text = f"{view.rescales} ({view.nodes_gained} nodes gained, {view.nodes_lost} lost)"
    if view.last_stall_s is None:
        return text
    return f"{text}, {duration(view.stall_s)} of stalls in all, {duration(view.last_stall_s)} in the last"


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum explain digits"))
def explain(trainer: TrainerRef, as_json: JsonFlag = False) -> None:
    """Say why a trainer has its number of nodes."""
    with connect() as client:
        explanation = client.explain(trainer)
    if as_json:
        print_json(explanation)
        return
    plan = "" if explanation.plan is None else f" (plan {explanation.plan})"
    console().print(f"{explanation.trainer} is {explanation.status}{plan}.\n{explanation.reason}")
    if explanation.condition:
        console().print(explanation.condition, style="yellow")


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def _epochs(number: int) -> str:
    return "1 epoch" if number == 1 else f"{count(number)} epochs"


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum scale digits --max-nodes 8",
        "oakum scale digits --sizes 1,2,4,8",
        "oakum scale digits --weight 2 --priority -5",
        "oakum pause digits; oakum scale digits --epochs 400; oakum unpause digits",
    ),
)
def scale(
    trainer: TrainerRef,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Fewest nodes it may train on.")] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Most nodes it may train on.")] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...|powers_of_two|any",
            help="The only numbers of nodes it may train on; bounds that are not given follow from them.",
        ),
    ] = None,
    weight: Annotated[float | None, typer.Option(help="Value of its samples relative to others'.")] = None,
    priority: Annotated[
        int | None, typer.Option(min=-100, max=100, help="Higher ones choose first; above 0 only for admins.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of a paused trainer; more than it has finished.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a live trainer's numbers of nodes, weight or priority; while it is paused, also its epochs."""
    from pydantic import ValidationError

    from oakum_service.api.schemas.trainers import TrainerChange
    from oakum_service.cli.screen import bounds_of
    from oakum_worker.spec import explain as explain_errors

    listed = None if sizes is None else sizes if sizes in ("any", "powers_of_two") else sizes.split(",")
    options = {
        "min_nodes": min_nodes,
        "max_nodes": max_nodes,
        "sizes": listed,
        "weight": weight,
        "priority": priority,
    }
    given = {name: value for name, value in (options | {"epochs": epochs}).items() if value is not None}
    if not given:
        raise typer.BadParameter(
            "nothing to change: give --min-nodes, --max-nodes, --sizes, --weight, --priority or --epochs"
        )
    try:
        change = TrainerChange.model_validate(given)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(explain_errors(error))) from error
    with connect() as client:
        view = client.change(trainer, change)
    if as_json:
        print_json(view)
    else:
        spec = view.spec
        typer.echo(
            f"{view.name} may use {bounds_of(spec)}, weight {spec.weight:g}, "
            f"priority {spec.priority}, for {_epochs(spec.epochs)}. "
            "The next plan takes this into account."
        )


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum cancel digits"))
def cancel(trainer: TrainerRef, as_json: JsonFlag = False) -> None:
    """End a trainer and give its nodes back."""
    with connect() as client:
        view = client.cancel(trainer)
    if as_json:
        print_json(view)
    else:
        typer.echo(f"{view.name} is {view.status} at step {count(view.step)}.")
