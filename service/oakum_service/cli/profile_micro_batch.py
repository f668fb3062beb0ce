"""`oakum profile micro-batch`: measured on this machine, by the worker's code. Needs torch, and no service."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from oakum_service.cli.app import CommandError, example
from oakum_service.cli.profile import profile_app


@profile_app.command(
    "micro-batch",
    epilog=example(
        "oakum profile micro-batch digits.yaml",
        "oakum profile micro-batch model.yaml --memory 16GiB --pipeline-stages 4 --json",
    ),
)
def micro_batch(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Trainer spec, YAML or JSON.", show_default=False)],
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            "--memory-bytes",
            metavar="SIZE",
            help="What one rank may use, such as 2GiB or 500MB.",
            show_default="the device's memory; half of the machine's on a CPU",
        ),
    ] = None,
    pipeline_stages: Annotated[int, typer.Option(min=1, help="Ranks that a model is spread over.")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples of a replica in a step.", show_default="global_batch over the fewest ranks"
        ),
    ] = None,
    largest: Annotated[bool, typer.Option("--largest", help="Find, too, how many samples fit at once.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure, also what was measured before.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure here which micro-batch trains fastest within the memory there is.

    Run it on a node of the kind that the trainer is for. Results are remembered in ~/.cache/oakum.
    """
    if importlib.util.find_spec("torch") is None:
        raise CommandError(
            "torch is not installed where `oakum` runs, and the model has to run: install oakum[worker] here, or "
            "use the nodes' Python: `python -m oakum_worker profile micro-batch SPEC`"
        )
    from oakum_worker.errors import WorkerError
    from oakum_worker.profile_command import as_document, as_text, measure

    try:
        found = measure(spec, memory, pipeline_stages, batch, largest=largest, fresh=fresh)
    except WorkerError as error:
        raise CommandError(str(error)) from error
    typer.echo(as_document(found) if json_output else as_text(found))
