"""`oakum profile layout`: predicts layouts from times measured on this machine. Needs torch, but no service."""

from __future__ import annotations

import typer

from oakum_client.cli.app import CommandError, example
from oakum_client.cli.profile import need_torch, profile_app
from oakum_worker.profiling.options import (
    BandwidthOption,
    JsonOption,
    LatencyOption,
    MemoryOption,
    NodesOption,
    SpecArgument,
)


@profile_app.command(
    "layout",
    epilog=example(
        "oakum profile layout transformer.yaml --nodes 16",
        "oakum profile layout transformer.yaml --memory 16GiB --latency-us 5 --bandwidth 25GB --json",
    ),
)
def layout(
    spec: SpecArgument,
    nodes: NodesOption = None,
    memory: MemoryOption = None,
    latency_us: LatencyOption = 100.0,
    bandwidth: BandwidthOption = "1GB",
    json_output: JsonOption = False,
) -> None:
    """Predict the fastest layout for each number of nodes, from times on this machine: stages or grids.

    The replicas, stages, schedule, micro-batches and recomputation shown are those that a trainer with this spec
    would choose. Run it on a node of the kind that the trainer is for.
    """
    need_torch("layout")
    from oakum_worker.errors import WorkerError
    from oakum_worker.profiling.command import as_document
    from oakum_worker.profiling.layout_command import layouts_as_text, measure_layouts

    try:
        layouts = measure_layouts(spec, nodes, memory, latency_us, bandwidth)
    except WorkerError as error:
        raise CommandError(str(error)) from error
    typer.echo(as_document(layouts) if json_output else layouts_as_text(layouts))
