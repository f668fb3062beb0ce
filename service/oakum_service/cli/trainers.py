"""Trainers: submit, ps, show, explain, scale, cancel."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oakum_service.cli.app import TRAINERS, CommandError, app, example
from oakum_service.cli.connection import connect
from oakum_service.cli.output import STATE_STYLES, JsonFlag, TrainerRef, console, print_json, table
from oakum_service.cli.units import age, clock, count, decimal, duration, rate

if TYPE_CHECKING:
    from oakum_service.api.schemas import TrainerView


@app.command(
    rich_help_panel=TRAINERS, epilog=example("oakum submit digits.yaml", "oakum submit digits.yaml --follow")
)
def submit(
    spec: Annotated[Path, typer.Argument(help="Trainer spec, YAML or JSON.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Watch it until it ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Hand in a trainer.

    With --follow the exit code says how it ended: 0 finished, 1 failed or cancelled.
    """
    from oakum_worker.errors import SpecError
    from oakum_worker.spec import read_spec

    try:
        document = read_spec(spec)
    except SpecError as error:
        raise CommandError(str(error)) from error
    with connect() as client:
        trainer = client.submit(document)
        if as_json:
            print_json(trainer, indent=None if follow else 2)
        else:
            _say_submitted(trainer)
        if follow:
            from oakum_service.cli.watch import watch_trainer

            raise typer.Exit(watch_trainer(client, trainer.id, as_json=as_json))


def _say_submitted(trainer: TrainerView) -> None:
    typer.echo(
        f"Submitted {trainer.name} ({trainer.id}). It trains whether or not anyone watches: "
        f"`oakum show {trainer.name}`."
    )


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum ps", "oakum ps --all --json"))
def ps(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List trainers: where they are and how many nodes they have."""
    from oakum_service.api.schemas import TrainerList

    with connect() as client:
        trainers = client.trainers().trainers
    shown = [trainer for trainer in trainers if everything or not trainer.state.ended]
    if as_json:
        print_json(TrainerList(trainers=shown))
    elif shown:
        _print_trainers(shown)
    elif trainers:
        typer.echo(f"No trainer is live; {len(trainers)} have ended (`oakum ps --all`).")
    else:
        typer.echo("No trainers. Hand one in with `oakum submit SPEC.yaml`.")


def _print_trainers(trainers: list[TrainerView]) -> None:
    from rich.text import Text

    from oakum_service.cli.screen import share_of

    columns = ("NAME", "STATE", "NODES", "STEP", "DONE", "LOSS", "SAMPLES/S", "AGE")
    listing = table(*columns, right=("NODES", "STEP", "DONE", "LOSS", "SAMPLES/S", "AGE"))
    for trainer in trainers:
        share = share_of(trainer)
        listing.add_row(
            Text(trainer.name),
            Text(trainer.state, style=STATE_STYLES.get(trainer.state, "")),
            str(len(trainer.nodes)),
            count(trainer.step),
            "-" if share is None else f"{share:.0%}",
            decimal(trainer.loss),
            rate(None if trainer.state.ended else trainer.samples_per_s),
            age(trainer.submitted_at),
        )
    console().print(listing)


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum show digits", "oakum show digits --watch"))
def show(
    trainer: TrainerRef,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the view up to date until it ends.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show one trainer: progress, size, and why it has that size."""
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
    spec = view.spec
    facts = [
        ("Id", view.id),
        ("Entrypoint", spec.entrypoint),
        ("Submitted", f"{clock(view.submitted_at)} ({age(view.submitted_at)} ago){_by(view)}"),
        ("Bounds", f"{spec.min_nodes} to {spec.max_nodes} nodes, weight {spec.weight:g}"),
        ("Priority", str(spec.priority or "")),
        ("Deadline", _deadline(view)),
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
    """Say why a trainer has the nodes it has."""
    with connect() as client:
        explanation = client.explain(trainer)
    if as_json:
        print_json(explanation)
        return
    size = f"{explanation.trainer} has {_nodes(explanation.nodes)}"
    if explanation.granted != explanation.nodes:
        size += f" and is granted {explanation.granted}"
    plan = "" if explanation.plan is None else f" (plan {explanation.plan})"
    console().print(f"{size}{plan}.\n{explanation.reason}")


def _nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example("oakum scale digits --max-nodes 8", "oakum scale digits --weight 2"),
)
def scale(
    trainer: TrainerRef,
    min_nodes: Annotated[int | None, typer.Option(min=1, help="Fewest nodes it may train on.")] = None,
    max_nodes: Annotated[int | None, typer.Option(min=1, help="Most nodes it may train on.")] = None,
    weight: Annotated[float | None, typer.Option(help="Value of its samples relative to others'.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a live trainer's bounds or weight."""
    from pydantic import ValidationError

    from oakum_service.api.schemas import TrainerChange
    from oakum_worker.spec import explain as explain_errors

    given = {"min_nodes": min_nodes, "max_nodes": max_nodes, "weight": weight}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        raise typer.BadParameter("nothing to change: give --min-nodes, --max-nodes or --weight")
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
            f"{view.name} may use {spec.min_nodes} to {_nodes(spec.max_nodes)}, weight {spec.weight:g}. "
            "The next plan counts it so."
        )


@app.command(rich_help_panel=TRAINERS, epilog=example("oakum cancel digits"))
def cancel(trainer: TrainerRef, as_json: JsonFlag = False) -> None:
    """End a trainer and give its nodes back."""
    with connect() as client:
        view = client.cancel(trainer)
    if as_json:
        print_json(view)
    else:
        typer.echo(f"{view.name} is {view.state} at step {count(view.step)}.")
