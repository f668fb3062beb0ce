"""`oakum profile micro-batch`: measures on this machine, with the worker's code. Needs torch, but no service."""

from __future__ import annotations

import typer

from oakum_client.cli.app import CommandError, example
from oakum_client.cli.profile import need_torch, profile_app
from oakum_worker.profiling.options import (
    BatchOption,
    FreshOption,
    JsonOption,
    LargestOption,
    MemoryOption,
    SpecArgument,
    StagesOption,
)


@profile_app.command(
    "micro-batch",
    epilog=example(
        "oakum profile micro-batch digits.yaml",
        "oakum profile micro-batch model.yaml --memory 16GiB --pipeline-stages 4 --json",
    ),
)
def micro_batch(
    spec: SpecArgument,
    memory: MemoryOption = None,
    pipeline_stages: StagesOption = 1,
    batch: BatchOption = None,
    largest: LargestOption = False,
    fresh: FreshOption = False,
    json_output: JsonOption = False,
) -> None:
    """Measure which micro-batch trains fastest within this machine's memory.

    Run it on a node of the kind that the trainer is for. Results are kept in ~/.cache/oakum.
    """
    need_torch("micro-batch")
    from oakum_worker.errors import WorkerError
    from oakum_worker.profiling.command import as_document, as_text, measure

    try:
        measurements = measure(spec, memory, pipeline_stages, batch, largest=largest, fresh=fresh)
    except WorkerError as error:
        raise CommandError(str(error)) from error
    typer.echo(as_document(measurements) if json_output else as_text(measurements))
