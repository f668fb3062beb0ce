"""`oakum profile`: predicts what a way of training costs, before anything is trained."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oakum_client.cli.app import TRAINERS, CommandError, app, example
from oakum_client.cli.output import console
from oakum_client.cli.output_file import OutputFile
from oakum_worker.schedule_table import (
    FROM_TORCH,
    ONE_F_ONE_B,
    TRAITS,
    WITH_MORE_STAGES,
    WITH_PIPES,
    ScheduleName,
    Scheme,
)

if TYPE_CHECKING:
    from oakum_worker.parallel.pipeline.operations import Schedule
    from oakum_worker.parallel.pipeline.simulation import Simulation

profile_app = typer.Typer(no_args_is_help=True, help="Predict what a way of training costs, before using it.")
app.add_typer(profile_app, name="profile", rich_help_panel=TRAINERS)


def need_torch(command: str) -> None:
    """Raise `CommandError` if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise CommandError(
            "torch is not installed where `oakum` runs, and the model has to run: run pip install '.[worker]' in "
            f"Oakum's checkout, or use the nodes' Python: `python -m oakum_worker profile {command} SPEC`"
        )


@profile_app.command(
    "pipeline",
    epilog=example(
        "oakum profile pipeline --stages 4 --micro-batches 8 --schedule chimera --draw",
        "oakum profile pipeline --stages 8 --micro-batches 16 --schedule 1f1b --svg schedule.svg",
    ),
)
def pipeline(
    stages: Annotated[
        int, typer.Option(min=1, help="Number of stages that the model is cut into.", show_default=False)
    ],
    micro_batches: Annotated[
        int,
        typer.Option(min=1, help="Number of micro-batches of a replica's share of the batch.", show_default=False),
    ],
    schedule: Annotated[
        ScheduleName,
        typer.Option(help=f"Schedule. {', '.join(FROM_TORCH)} need torch."),
    ] = ONE_F_ONE_B.name,
    scheme: Annotated[
        Scheme,
        typer.Option(help="What Chimera does with more micro-batches than stages."),
    ] = "auto",
    pipes: Annotated[
        int, typer.Option(min=2, help="Number of Chimera's pipes, its paths through the workers.")
    ] = 2,
    stages_per_worker: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Stages on each worker, for {', '.join(WITH_MORE_STAGES)}.", show_default="1 or 2"
        ),
    ] = None,
    backward: Annotated[
        float, typer.Option(min=0.1, max=1000, help="Time of a backward pass, in units of a forward pass.")
    ] = 2.0,
    draw: Annotated[bool, typer.Option("--draw", help="Draw the schedule as text.")] = False,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the schedule to this SVG file.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how long workers idle in a pipeline schedule, and how many micro-batches each has to hold."""
    from oakum_worker.errors import ScheduleError
    from oakum_worker.parallel.pipeline.picture import draw_svg, draw_text
    from oakum_worker.parallel.pipeline.schedules import build
    from oakum_worker.parallel.pipeline.simulation import simulate
    from oakum_worker.parallel.pipeline.validation import validate

    picture = OutputFile(svg, "--svg") if svg else None
    traits = TRAITS[schedule]
    if traits.has_pipes and stages_per_worker is not None:
        raise CommandError(f"{schedule} has one stage of each pipe on a worker: leave out --stages-per-worker")
    if not traits.has_pipes and (pipes != 2 or scheme != "auto"):
        raise CommandError(f"--pipes and --scheme are for {', '.join(WITH_PIPES)}: leave them out for {schedule}")
    per_worker = stages_per_worker or traits.stages_per_worker
    if stages % per_worker:
        raise CommandError(
            f"{stages} stages cannot be dealt out {per_worker} to a worker: give a multiple of that"
        )
    try:
        orders = build(
            schedule,
            num_workers=stages // per_worker,
            num_micro_batches=micro_batches,
            stages_per_worker=None if traits.has_pipes else per_worker,
            num_pipes=pipes,
            scheme=scheme,
            backward=backward,
        )
        validate(orders)
    except ScheduleError as error:
        raise CommandError(str(error)) from error
    simulation = simulate(orders, forward=1.0, backward=backward)
    facts = _facts(orders, simulation, backward, per_worker)
    if picture is not None:
        picture.write([draw_svg(orders, simulation)])
    if json_output:
        typer.echo(json.dumps(facts | {"workers": _operations(simulation)}, indent=2))
        return
    screen = console()
    if draw:
        screen.print(draw_text(orders, simulation), soft_wrap=True)
        screen.print()
    _print_facts(facts)


def _facts(schedule: Schedule, simulation: Simulation, backward: float, per_worker: int) -> dict[str, Any]:
    from oakum_worker.parallel.pipeline.formulas import FormulaTerms
    from oakum_worker.parallel.pipeline.schedules import SCHEDULES

    doubled = any(len(operation.micro_batches) == 2 for order in schedule.operations for operation in order)
    formula = None
    if backward in (1, 2):
        terms = FormulaTerms(
            schedule.num_workers,
            schedule.num_micro_batches,
            stages_per_worker=per_worker,
            num_pipes=schedule.num_pipes,
            backward=1 if backward == 1 else 2,
        )
        formula = SCHEDULES[schedule.name].bubble(terms)
    return {
        "schedule": schedule.name,
        "num_stages": schedule.num_stages,
        "num_workers": schedule.num_workers,
        "num_pipes": schedule.num_pipes,
        "num_micro_batches": schedule.num_micro_batches,
        "doubled_forwards": doubled,
        "backward": backward,
        "makespan": simulation.makespan,
        "bubble_ratio": simulation.bubble_ratio,
        "formula": {"text": formula.text, "value": formula.value} if formula else None,
        "peak_activations": list(simulation.peak_activations),
    }


def _operations(simulation: Simulation) -> list[list[dict[str, Any]]]:
    return [
        [
            {
                "kind": span.operation.kind.name.lower(),
                "stage": span.operation.stage,
                "pipe": span.operation.pipe,
                "micro_batches": span.operation.micro_batches,
                "start": span.start,
                "end": span.end,
            }
            for span in worker
        ]
        for worker in simulation.spans
    ]


def _print_facts(facts: dict[str, Any]) -> None:
    formula, activations = facts["formula"], facts["peak_activations"]
    pipes = f" in {facts['num_pipes']} pipes" if facts["num_pipes"] > 1 else ""
    passes = ", forward passes of two micro-batches" if facts["doubled_forwards"] else ""
    formula_text = f"  ({formula['text']} = {100 * formula['value']:.1f} %)" if formula else ""
    typer.echo(
        f"{facts['schedule']}: {facts['num_micro_batches']} micro-batches through {facts['num_stages']} stages on "
        f"{facts['num_workers']} workers{pipes}{passes}"
    )
    typer.echo(f"makespan     {facts['makespan']:g} forward passes; a backward pass takes {facts['backward']:g}")
    typer.echo(f"bubbles      {100 * facts['bubble_ratio']:.1f} %{formula_text}")
    typer.echo(
        f"activations  {' '.join(f'{number:g}' for number in activations)} micro-batches at most, by worker"
    )
