"""Commands for trainers: ps, show, explain, scale, cancel."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_client.cli.app import TRAINERS, app, example
from oakum_client.cli.columns import ColumnsOption, SortOption
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, TrainerRef, TrainerRefs, console, print_json, table
from oakum_client.cli.trainer_changes import change_trainer
from oakum_client.cli.units import age, clock, count, duration
from oakum_solver.wording import counted

if TYPE_CHECKING:
    from oakum_service.api.schemas.trainers import TrainerView

_MOST_REASONS = 20
_SCALED = (
    "--min-nodes, --max-nodes, --sizes, --weight, --priority, --epochs, --qos, --account, --constraint or "
    "--reservation"
)


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum ps",
        "oakum ps --all --user alice --sort -rate",
        "oakum ps --all --tag baseline -o +tags",
        "oakum ps -o name,state,why",
    ),
)
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="List trainers that have ended, too.")] = False,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Trainers of this user only.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Trainers with this tag only.")] = None,
    columns: ColumnsOption = None,
    sort: SortOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List trainers: state, nodes, progress, rate and age; below, what is wrong, and why some have no node.

    `oakum explain` says why a trainer has its size; `-o wide` shows that and all else.
    """
    from oakum_client.cli.trainer_columns import TRAINER_LISTING

    TRAINER_LISTING.check(columns, sort)
    with connect() as client:
        listing = client.trainers(user=user, tag=tag) if everything else client.live_trainers(user, tag)
    trainers = listing.trainers
    if as_json:
        print_json(listing)
        return
    screen = console()
    if listing.fault is not None:
        screen.print(f"{listing.fault}.\n", style="red", markup=False)
    if listing.hold is not None:
        screen.print(f"{listing.hold.sentence}\n", style="yellow")
    if not trainers:
        whose = ("" if user is None else f" of {user}") + ("" if tag is None else f" with the tag {tag}")
        ended = "" if everything else ", and `oakum ps --all` lists those that have ended"
        typer.echo(f"No trainers{whose}: `oakum submit SPEC.yaml` hands one in{ended}.")
        return
    screen.print(TRAINER_LISTING.table(trainers, columns, sort))
    if "why" not in TRAINER_LISTING.names(columns):
        _print_reasons([view for view in trainers if view.condition or not (view.nodes or view.state.ended)])


def _print_reasons(trainers: list[TrainerView]) -> None:
    """Print a paragraph for each of these trainers, up to twenty: what is wrong with it, and why it waits."""
    from rich.text import Text

    from oakum_client.cli.screen import why_of

    screen = console()
    if trainers:
        screen.print()
    for trainer in trainers[:_MOST_REASONS]:
        screen.print(Text.assemble((trainer.name, "bold"), f": {why_of(trainer)}"))
    if len(trainers) > _MOST_REASONS:
        screen.print(f"and {len(trainers) - _MOST_REASONS} more: `oakum explain NAME`")


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum show digits", "oakum show digits --watch"))
def show(
    trainer: TrainerRef,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update the view until the trainer ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one trainer: its progress, its size, and why it has that size."""
    with connect() as client:
        if watch:
            from oakum_client.cli.watch import watch_trainer

            raise typer.Exit(watch_trainer(client, trainer, as_json=as_json))
        view = client.trainer(trainer)
    if as_json:
        print_json(view)
    else:
        _print_trainer(view)


def _print_trainer(view: TrainerView) -> None:
    from oakum_client.cli.screen import screen_of

    screen = console()
    screen.print(screen_of(view))
    screen.print()
    facts = table("", "")
    facts.show_header = False
    for name, value in _facts(view):
        facts.add_row(name, value)
    screen.print(facts)


def _facts(view: TrainerView) -> list[tuple[str, str]]:
    from oakum_client.cli.screen import bounds_of

    spec = view.spec
    facts = [
        ("Id", view.id),
        ("Script" if spec.script else "Entrypoint", spec.code),
        ("Submitted", f"{clock(view.submitted_at)} ({age(view.submitted_at)} ago){_by(view)}"),
        ("Bounds", f"{bounds_of(spec)}, weight {spec.weight:g}"),
        ("Slots", view.slots_reason),
        ("Priority", str(spec.priority or "")),
        ("Deadline", _deadline(view)),
        ("Exact", "" if spec.exact else "no, by `exact: false`: its results may depend on its nodes"),
        ("Tags", ", ".join(spec.tags)),
        ("Notes", spec.notes),
        ("Samples", _samples(view)),
        ("Rescales", _rescales(view)),
        (
            "Steps at",
            ", ".join(f"{counted(n, 'node')}: {count(s)}" for n, s in sorted(view.steps_at_size.items())),
        ),
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
    text = f"{count(view.rescales)} ({counted(view.nodes_gained, 'node')} gained, {count(view.nodes_lost)} lost)"
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
    if explanation.slots_reason:
        console().print(explanation.slots_reason)
    if explanation.curve_reason:
        console().print(explanation.curve_reason)
    if explanation.look_ahead_reason:
        console().print(explanation.look_ahead_reason, style="dim")


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum scale digits --max-nodes 8",
        "oakum scale digits --sizes 1,2,4,8",
        "oakum scale digits --weight 2 --priority -5",
        "oakum scale digits --qos night --reservation ''",
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
    qos: Annotated[str | None, typer.Option(metavar="NAME", help="Slurm QOS of later jobs; '' for none.")] = None,
    account: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm account of later jobs; '' for none.")
    ] = None,
    constraint: Annotated[
        str | None, typer.Option(metavar="FEATURES", help="Features of its nodes on Slurm; '' for any.")
    ] = None,
    reservation: Annotated[
        str | None, typer.Option(metavar="NAME", help="Slurm reservation whose nodes it gets; '' for none.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a live trainer's numbers of nodes, weight, priority or Slurm options; while it is paused, also its
    epochs."""
    from oakum_client.cli.screen import bounds_of

    allowed_sizes = None if sizes is None else sizes if sizes in ("any", "powers_of_two") else sizes.split(",")
    names = {"qos": qos, "account": account, "constraint": constraint, "reservation": reservation}
    slurm = {name: value or None for name, value in names.items() if value is not None}
    changes = {
        "min_nodes": min_nodes,
        "max_nodes": max_nodes,
        "sizes": allowed_sizes,
        "weight": weight,
        "priority": priority,
        "epochs": epochs,
        "slurm": slurm or None,
    }
    view = change_trainer(trainer, changes, _SCALED)
    if as_json:
        print_json(view)
    else:
        spec = view.spec
        typer.echo(
            f"{view.name} may use {bounds_of(spec)}, weight {spec.weight:g}, "
            f"priority {spec.priority}, for {counted(spec.epochs, 'epoch')}. "
            "The next plan takes this into account."
        )
        if epochs is not None and spec.script is not None:
            typer.echo(f"Its script, {spec.script}, has to ask for {counted(epochs, 'epoch')}, too.")


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum cancel digits", "oakum cancel sweep-1 sweep-2"))
def cancel(trainers: TrainerRefs, as_json: JsonFlag = False) -> None:
    """End trainers and give their nodes back. Where one of several is not known, none is ended."""
    with connect() as client:
        if len(trainers) > 1:
            for trainer in trainers:
                client.trainer(trainer)  # raises where it is not known
        views = [client.cancel(trainer) for trainer in trainers]
    if not as_json:
        for view in views:
            typer.echo(f"{view.name} is {view.status} at step {count(view.step)}.")
    elif len(views) == 1:
        print_json(views[0])
    else:
        from oakum_service.api.schemas.trainers import TrainerList

        print_json(TrainerList(trainers=views))
