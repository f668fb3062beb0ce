"""`python -m oakum_worker profile layout`: predict how a trainer's model would be divided over nodes, in stages or
on grids, before it is submitted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.profiling.command import as_document, profile_app, progress_bar, reported
from oakum_worker.profiling.grid_profile import GridsProfile, grids_as_text, profile_grids
from oakum_worker.profiling.kinds import kinds_as_text
from oakum_worker.profiling.layout_profile import LayoutProfile, profile_layouts
from oakum_worker.profiling.options import (
    BandwidthOption,
    JsonOption,
    LatencyOption,
    MemoryOption,
    NodesOption,
    SpecArgument,
    parse_bytes,
)
from oakum_worker.spec import TrainerSpec, read_spec


@profile_app.command("layout")
def layout(
    spec: SpecArgument,
    nodes: NodesOption = None,
    memory: MemoryOption = None,
    latency_us: LatencyOption = 100.0,
    bandwidth: BandwidthOption = "1GB",
    as_json: JsonOption = False,
) -> None:
    """Predict the fastest layout for each number of nodes, from times on this machine: stages or grids."""
    with reported():
        profile = measure_layouts(spec, nodes, memory, latency_us, bandwidth)
    typer.echo(as_document(profile) if as_json else layouts_as_text(profile))


def measure_layouts(
    spec: Path, nodes: int | None, memory: str | None, latency_us: float, bandwidth: str
) -> LayoutProfile | GridsProfile:
    """Read the spec file, time its layers (with `parallel.tensor`, its products) and predict its layouts, with a
    progress bar where standard error is a terminal. Returns the predictions.

    `nodes` is the largest number of nodes to predict for; `memory` (of one rank) and `bandwidth` (bytes per
    second) are sizes such as `2GiB`. Raises `SpecError` for a spec, size or number of nodes that cannot be used,
    and `TaskError` where the task fails.
    """
    memory_bytes = parse_bytes(memory) if memory is not None else None
    links = LinkCosts(latency_us * 1e-6, parse_bytes(bandwidth, "--bandwidth"))
    trainer_spec = read_spec(spec)
    with progress_bar(trainer_spec.name) as progress:
        profile = _profile_of(trainer_spec)
        return profile(trainer_spec, most_nodes=nodes, memory_bytes=memory_bytes, links=links, progress=progress)


def _profile_of(spec: TrainerSpec) -> Callable[..., LayoutProfile | GridsProfile]:
    """The function that predicts layouts of a trainer with this spec: of grids alone, or of stages, each of which
    may be a grid."""
    return (
        profile_grids if spec.parallel.tensor is not None and spec.parallel.pipeline is None else profile_layouts
    )


def layouts_as_text(profile: LayoutProfile | GridsProfile) -> str:
    """The predictions as text: a table with a line for each number of nodes, then what was assumed of memory and
    links. A `*` marks the fastest layout that fits."""
    if isinstance(profile, GridsProfile):
        return grids_as_text(profile)
    fastest = max((row.samples_per_s for row in profile.layouts if row.fits), default=None)
    lines = ["nodes  replicas  stages  schedule        micro-batches   samples/s   peak memory"]
    for row in profile.layouts:
        is_fastest = row.fits and row.samples_per_s == fastest
        fastest = None if is_fastest else fastest
        remarks = {
            row.grid: row.grid != "none",
            "recomputes": row.recompute,
            "does not fit": not row.fits,
            "*": is_fastest,
        }
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
            kinds_as_text(profile.kinds, len(profile.layouts)),
            *([f"no grids: {profile.without_grids}"] if profile.without_grids else []),
            "",
            f"{profile.layers} layers on {profile.device}, {profile.memory_bytes / 2**20:,.0f} MiB for each rank; "
            f"{profile.global_batch:,} samples in a step",
            f"links of {1e6 * profile.latency_s:,.0f} us and {profile.bandwidth_bytes_per_s / 1e9:,.3g} GB/s; "
            "what a running trainer measures of them takes their place",
        ]
    )
