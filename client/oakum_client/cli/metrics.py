"""`oakum metrics`: what a trainer's evaluations gave, and its losses: a table, CSV, JSON or TensorBoard files."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.connection import connect
from oakum_client.cli.output import JsonFlag, TrainerRef, console, table
from oakum_client.cli.units import clock, count, decimal
from oakum_solver.wording import counted

if TYPE_CHECKING:
    from oakum_client.rest.client import OakumClient
    from oakum_service.api.schemas.series import EvaluationView, SeriesPoint

_MOST_POINTS = 5000
_SHOWN = 20
_PERIOD_S = 5.0
"""Seconds between two additions to TensorBoard's files."""
_PATIENCE_S = 60.0
"""Seconds for which the service may be unreachable."""


@app.command(
    rich_help_panel=TRAINERS,
    epilog=example(
        "oakum metrics digits",
        "oakum metrics digits --csv > digits.csv",
        "oakum metrics digits --tensorboard runs --follow",
    ),
)
def metrics(
    trainer: TrainerRef,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print all evaluations and losses as CSV, with times in Unix seconds.")
    ] = False,
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            file_okay=False,
            help="Write them, with losses, rates and sizes, as one run into FOLDER/TRAINER, for TensorBoard.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="With --tensorboard: go on until the trainer has ended.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the metrics of a trainer's evaluations, from its first start on."""
    if as_csv + as_json + (tensorboard is not None) > 1:
        raise typer.BadParameter("give one of --csv, --json and --tensorboard")
    if follow and tensorboard is None:
        raise typer.BadParameter("--follow goes with --tensorboard")
    if tensorboard is not None:
        with connect() as client:
            _write_run(client, trainer, tensorboard, follow=follow)
        return
    with connect() as client:
        evaluations = client.evaluations(trainer)
        points = client.series(trainer, _MOST_POINTS, from_at=0.0).points if as_csv else []
    if as_json:
        typer.echo(json.dumps({"evaluations": [evaluation.model_dump() for evaluation in evaluations]}))
    elif as_csv:
        _write_csv(evaluations, points)
    elif evaluations:
        _print_table(evaluations)
    else:
        raise CommandError(
            f"trainer {trainer} has not been evaluated yet: its task has no `evaluate`, or it has not come to the "
            "end of an epoch; `--csv` prints its losses"
        )


def _write_run(client: OakumClient, trainer: str, folder: Path, *, follow: bool) -> None:
    """Write the trainer's run for TensorBoard; with `follow` until the trainer has ended. A service that does not
    answer for a while, as in a restart, is waited for."""
    from oakum_client.cli.tensorboard import TensorBoardRun
    from oakum_client.rest.errors import ServiceUnreachable

    view = client.trainer(trainer)
    run = TensorBoardRun(folder / view.name, view.id)
    count, heard_at = 0, time.monotonic()
    try:
        while True:
            try:
                has_ended = client.trainer(view.id).state.ended
                points = client.series(view.id, _MOST_POINTS, from_at=0.0).points
                count += run.add(points, client.evaluations(view.id))
                heard_at = time.monotonic()
            except ServiceUnreachable:
                if not follow or time.monotonic() - heard_at > _PATIENCE_S:
                    raise
                has_ended = False
            if has_ended or not follow:
                break
            time.sleep(_PERIOD_S)
    finally:
        run.close()
    typer.echo(f"{folder / view.name}: {counted(count, 'point')}; `tensorboard --logdir {folder}` shows them")


def metric_names(evaluations: Iterable[EvaluationView]) -> list[str]:
    """The names of all metrics, in the order in which they appear."""
    return list(dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics))


def _print_table(evaluations: list[EvaluationView]) -> None:
    newest = evaluations[-_SHOWN:]
    names = metric_names(newest)
    listing = table("STEP", "AT", *(name.upper() for name in names), right=("STEP", *map(str.upper, names)))
    for evaluation in newest:
        listing.add_row(
            count(evaluation.step),
            clock(evaluation.at),
            *(decimal(evaluation.metrics.get(name)) for name in names),
        )
    screen = console()
    if len(newest) < len(evaluations):
        screen.print(f"The newest {len(newest)} of {count(len(evaluations))} evaluations; `--csv` prints all.\n")
    screen.print(listing)


def _write_csv(evaluations: list[EvaluationView], points: list[SeriesPoint]) -> None:
    names = metric_names(evaluations)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*_COLUMNS, *names])
    for row in steps_of(points, evaluations):
        writer.writerow(["" if (value := row.get(name)) is None else value for name in [*_COLUMNS, *names]])


_COLUMNS = ("step", "at", "nodes", "loss", "samples_per_s", "loss_mean", "loss_min", "loss_max", "reports")


def steps_of(points: Iterable[SeriesPoint], evaluations: Iterable[EvaluationView]) -> list[dict[str, Any]]:
    """Each step of which something was reported, once and in order: its point, with what is first known of it, and
    the metrics of its evaluation."""
    rows: dict[int, dict[str, Any]] = {}
    for point in points:
        row = rows.setdefault(point.step, {})
        row |= {name: value for name, value in point.model_dump().items() if row.get(name) is None}
    for evaluation in evaluations:
        row = rows.setdefault(evaluation.step, {"step": evaluation.step, "at": evaluation.at})
        row |= evaluation.metrics
    return [rows[step] for step in sorted(rows)]
