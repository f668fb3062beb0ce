"""`python -m oakum_worker profile layout`: how a pipeline trainer would be laid out, before it is submitted."""

from __future__ import annotations

from pathlib import Path

import typer

from oakum_worker.layout_profile import LayoutProfile, profile_layouts
from oakum_worker.parallel.pipeline.costs import Links
from oakum_worker.profile_command import as_document, profile_app, reported, told
from oakum_worker.profile_options import (
    BandwidthOption,
    JsonOption,
    LatencyOption,
    MemoryOption,
    NodesOption,
    SpecArgument,
    parse_bytes,
)
from oakum_worker.spec import read_spec


@profile_app.command("layout")
def layout(
    spec: SpecArgument,
    nodes: NodesOption = None,
    memory: MemoryOption = None,
    latency_us: LatencyOption = 100.0,
    bandwidth: BandwidthOption = "1GB",
    as_json: JsonOption = False,
) -> None:
    """Predict the fastest pipeline layout for each number of nodes, from the layers' times on this machine."""
    with reported():
        found = measure_layouts(spec, nodes, memory, latency_us, bandwidth)
    typer.echo(as_document(found) if as_json else layouts_as_text(found))


def measure_layouts(
    spec: Path, nodes: int | None, memory: str | None, latency_us: float, bandwidth: str
) -> LayoutProfile:
    """What the command finds, with a progress bar on a terminal. Raises `SpecError` and `TaskError`."""
    memory_bytes = parse_bytes(memory) if memory is not None else None
    links = Links(latency_us * 1e-6, parse_bytes(bandwidth, "--bandwidth"))
    trainer_spec = read_spec(spec)
    with told(trainer_spec.name) as progress:
        return profile_layouts(
            trainer_spec, most_nodes=nodes, memory_bytes=memory_bytes, links=links, progress=progress
        )


def layouts_as_text(found: LayoutProfile) -> str:
    """A line for each number of nodes."""
    fastest = max((row.samples_per_s for row in found.layouts if row.fits), default=None)
    lines = ["nodes  replicas  stages  schedule        micro-batches   samples/s   peak memory"]
    for row in found.layouts:
        is_fastest = row.fits and row.samples_per_s == fastest
        fastest = None if is_fastest else fastest
        remarks = {"recomputes": row.recompute, "does not fit": not row.fits, "*": is_fastest}
        micro_batches = f"{row.micro_batches:,} x {row.micro_batch:,}"
        peak = f"{row.peak_bytes / 2**20:,.1f} MiB"
        lines.append(
            f"{row.nodes:5}{row.replicas:10}{row.stages:8}  {row.schedule:14}{micro_batches:>15}"
            f"{row.samples_per_s:12,.1f}{peak:>14}  {', '.join(name for name, holds in remarks.items() if holds)}"
        )
    return "\n".join(
        [
            *(line.rstrip() for line in lines),
            "",
            f"{found.layers} layers on {found.device}, {found.memory_bytes / 2**20:,.0f} MiB for each rank; "
            f"{found.global_batch:,} samples in a step",
            f"links of {1e6 * found.latency_s:,.0f} us and {found.bandwidth_bytes_per_s / 1e9:,.3g} GB/s; "
            "what a running trainer measures of them takes their place",
        ]
    )
