"""The grid that is predicted to be fastest for each number of nodes, from times of a model's products on this
machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from oakum_worker.devices import device_name
from oakum_worker.errors import SpecError
from oakum_worker.parallel.arranging import MOST_RANKS
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.link_costs import USUAL_LINKS, LinkCosts
from oakum_worker.parallel.pipeline.layouts import Layout
from oakum_worker.parallel.tensor.conversion import NOT_USED, DividedParameter
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import load_task

_KINDS = {"1d": "line", "2d": "square", "3d": "cube"}


@dataclass(frozen=True, slots=True)
class NodesGrid:
    """The grid that is predicted to be fastest on a number of nodes, with its step time, speed and memory."""

    nodes: int
    replicas: int
    grid: str
    """Such as `cube of 2`; `none` for replicas of one rank."""
    ranks_per_grid: int
    micro_batch: int
    """Samples of the largest micro-batch."""
    micro_batches: int
    """Micro-batches of each replica in a step."""
    step_s: float
    samples_per_s: float
    peak_bytes: int
    """Peak memory of a rank, in bytes."""
    fits: bool
    """Whether the peak is within a rank's memory."""


@dataclass(frozen=True, slots=True)
class GridsProfile:
    """The fastest grid for each number of nodes, with the memory of a rank and the speed of links that were
    assumed."""

    products: int
    """Products of linear layers in a forward pass."""
    global_batch: int
    memory_bytes: int
    """Memory that one rank may use, in bytes."""
    device: str
    latency_s: float
    bandwidth_bytes_per_s: float
    layouts: tuple[NodesGrid, ...]
    largest_grid: str = "none"
    """The grid with the most ranks among `layouts`, such as `cube of 2`; `none` where no grid is used."""
    converted: tuple[DividedParameter, ...] = ()
    """What each parameter is, and by which axes of `largest_grid` it is divided."""
    grids: tuple[NodesGrid, ...] = ()
    """Each grid in its fastest form on the largest number of nodes, the fastest that fits first."""
    refused: tuple[tuple[str, str], ...] = ()
    """(grid, why) of those onto which the model does not go."""


def profile_grids(
    spec: TrainerSpec,
    *,
    most_nodes: int | None = None,
    memory_bytes: int | None = None,
    links: LinkCosts = USUAL_LINKS,
    progress: Callable[[str], None] = lambda _: None,
) -> GridsProfile:
    """Time the products of the spec's model on this machine, and predict the fastest grid for each of 1 to
    `most_nodes` nodes. The spec must have `parallel.tensor`. Returns the predictions.

    `most_nodes` is by default the spec's `max_nodes`, or fewer where that is more ranks than grids are searched
    for. `memory_bytes` is what one rank may use, by default what the spec says or the device has. `progress` is
    called with the name of each next step. Raises `TaskError` where the task fails or does not go onto the grid
    that the spec names, and `SpecError` for more ranks than grids are searched for.
    """
    assert spec.parallel.tensor is not None
    nodes = min(spec.max_nodes, MOST_RANKS // spec.ranks_per_node) if most_nodes is None else most_nodes
    if nodes * spec.ranks_per_node > MOST_RANKS or nodes < 1:
        raise SpecError(
            f"grids of {nodes} nodes with {spec.ranks_per_node} ranks each are asked for: give at most "
            f"{MOST_RANKS} ranks"
        )
    if memory_bytes is not None:
        tensor = spec.parallel.tensor.model_copy(update={"memory_bytes": memory_bytes})
        spec = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"tensor": tensor})})
    torch.set_num_threads(spec.threads_per_rank)
    progress("build the task")
    task = load_task(spec)
    arranger = GridArranger(task, spec)
    progress("time the products")
    profile = arranger.measure_model()
    arranger.note_links(links)
    progress("try the grids")
    layouts = arranger.layouts(nodes)
    refused = arranger.grids.refusals(nodes * spec.ranks_per_node)
    largest = max((layout.grid for layout in layouts), key=lambda grid: grid.num_ranks)
    return GridsProfile(
        products=len(profile.products),
        global_batch=arranger.global_batch,
        memory_bytes=int(arranger.memory_bytes),
        device=device_name(next(task.model.parameters()).device),
        latency_s=links.latency_s,
        bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
        layouts=tuple(_row(number, layout) for number, layout in enumerate(layouts, start=1)),
        largest_grid=name_for_people(largest),
        converted=arranger.grids.conversion(largest).converted if largest.num_ranks > 1 else (),
        grids=tuple(_row(nodes, layout) for layout in arranger.compare_grids(nodes * spec.ranks_per_node)),
        refused=tuple((name_for_people(grid), why) for grid, why in refused.items()),
    )


def name_for_people(grid: Grid) -> str:
    """The grid's name in tables, such as `cube of 2` or `4 shards`; `none` for a grid of one rank."""
    if grid.num_ranks == 1:
        return "none"
    return f"{grid.side} shards" if grid.kind == "shards" else f"{_KINDS[grid.kind]} of {grid.side}"


def _row(nodes: int, layout: Layout) -> NodesGrid:
    grid = layout.grid
    return NodesGrid(
        nodes=nodes,
        replicas=layout.num_replicas,
        grid=name_for_people(grid),
        ranks_per_grid=grid.num_ranks,
        micro_batch=layout.micro_batch,
        micro_batches=layout.num_micro_batches,
        step_s=layout.predicted_step_s,
        samples_per_s=layout.samples_per_s,
        peak_bytes=layout.most_bytes,
        fits=layout.fits,
    )


def grids_as_text(profile: GridsProfile) -> str:
    """The predictions as text: a table with a line for each number of nodes, then what was assumed of memory and
    links. A `*` marks the fastest grid that fits."""
    fastest = max((row.samples_per_s for row in profile.layouts if row.fits), default=None)
    lines = ["nodes  replicas  grid          micro-batches   samples/s   peak memory"]
    for row in profile.layouts:
        is_fastest = row.fits and row.samples_per_s == fastest
        fastest = None if is_fastest else fastest
        remarks = {"does not fit": not row.fits, "*": is_fastest}
        micro_batches = f"{row.micro_batches:,} x {row.micro_batch:,}"
        peak = f"{row.peak_bytes / 2**20:,.2f} MiB"
        line = (
            f"{row.nodes:5}{row.replicas:10}  {row.grid:12}{micro_batches:>15}{row.samples_per_s:12,.1f}{peak:>14}"
        )
        lines.append(f"{line}  {', '.join(name for name, holds in remarks.items() if holds)}".rstrip())
    return "\n".join(
        [
            *lines,
            "",
            *_grids_as_text(profile),
            "",
            f"{profile.products} products on {profile.device}, {profile.memory_bytes / 2**20:,.1f} MiB for each "
            f"rank; {profile.global_batch:,} samples in a step",
            f"links of {1e6 * profile.latency_s:,.0f} us and {profile.bandwidth_bytes_per_s / 1e9:,.3g} GB/s; "
            "what a running trainer measures of them takes their place",
            *_converted_as_text(profile),
        ]
    )


def _grids_as_text(profile: GridsProfile) -> Iterator[str]:
    """The grids on the largest number of nodes, of lines and shards only the best; then those onto which the model
    does not go, by the reason."""
    yield f"grids on {len(profile.layouts)} nodes    replicas  ranks  micro-batches        step   peak memory"
    shown_kinds: set[str] = set()
    for row in profile.grids:
        kind = re.sub(r"[ 0-9]", "", row.grid)
        if kind in shown_kinds and kind in ("lineof", "shards"):
            continue
        shown_kinds.add(kind)
        micro_batches = f"{row.micro_batches:,} x {row.micro_batch:,}"
        line = (
            f"{row.grid:18}{row.replicas:10}{row.ranks_per_grid:7}{micro_batches:>15}{1e3 * row.step_s:9,.1f} ms"
            f"{row.peak_bytes / 2**20:10,.2f} MiB"
        )
        yield line if row.fits else f"{line}  does not fit"
    reasons: dict[str, list[str]] = {}
    for grid, why in profile.refused:
        reasons.setdefault(why, []).append(grid)
    yield from (f"not {', '.join(grids)}: {why}" for why, grids in reasons.items())


def _converted_as_text(profile: GridsProfile) -> Iterator[str]:
    """How the parameters are divided; those whose names differ in numbers alone share a line."""
    if not profile.converted:
        return
    article = "" if profile.largest_grid.endswith("shards") else "a "
    yield f"\nParameters on {article}{profile.largest_grid}:"
    kinds = Counter(f"{re.sub(r'[0-9]+', '*', one.name)}: {_divided(one)}" for one in profile.converted)
    for kind, number in kinds.items():
        yield f"  {kind}" if number == 1 else f"  {kind} ({number} parameters)"


def _divided(parameter: DividedParameter) -> str:
    if not parameter.axes:
        return "not used: whole on every rank" if parameter.role == NOT_USED else "whole on every rank"
    sections = f", in {parameter.sections} sections" if parameter.sections > 1 else ""
    return f"{parameter.role}, by {', '.join(parameter.axes)}{sections}"
