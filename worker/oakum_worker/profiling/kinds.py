"""Compares the ways of sharing a model among ranks: replicas, shards, stages, grids, and grids in stages.

All are predicted from the same measured layers. Shards are the grid of that name, where the model goes onto one,
which is also what `tensor: {}` may choose; else they are those of `data: sharded` (FSDP2), whose ranks gather each
layer's weights twice and scatter its gradients' sum once, (n-1)/n of the bytes each, not hidden behind computing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from oakum_worker.errors import TaskError
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.costs import ModelProfile
from oakum_worker.parallel.pipeline.layouts import Layout, choose
from oakum_worker.profiling.grid_profile import name_for_people
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import PipelineSpec, TensorSpec
from oakum_worker.task import Task


@dataclass(frozen=True, slots=True)
class KindOfLayout:
    """One way of sharing the model among ranks, in its fastest form."""

    kind: str
    """`replicated`, `sharded`, `pipeline`, `tensor` or `tensor in stages`."""
    replicas: int
    stages: int
    grid: str
    """The grid of each stage; `none` for one rank."""
    step_s: float
    peak_bytes: int
    """Peak memory of the rank that needs most, in bytes."""
    fits: bool


def compare_kinds(
    task: Task, spec: TrainerSpec, measured: Arranger, num_ranks: int, links: LinkCosts
) -> tuple[KindOfLayout, ...]:
    """The fastest layout of each kind on `num_ranks` ranks, the fastest kind that fits first. A kind that the
    model cannot have is left out. The arranger `measured` has to know the layers' times."""
    arranger: Arranger
    try:
        arranger = StackedArranger(task, _open(spec))
    except TaskError:  # parameters outside of layers, for instance
        arranger = Arranger(task, _open(spec))
    arranger.agree([measured.measurements])
    arranger.note_links(links)
    on_grids = [*_on_grids(arranger, num_ranks)] if isinstance(arranger, StackedArranger) else []
    on_shards = any(one.kind == "sharded" for one in on_grids)
    kinds = [*_whole(arranger, num_ranks, links, with_shards=not on_shards), *on_grids]
    return tuple(sorted(kinds, key=lambda one: (not one.fits, one.step_s)))


def _open(spec: TrainerSpec) -> TrainerSpec:
    """The spec with the choice of stages and grid left to Oakum, within the memory that it names."""
    parallel = spec.parallel
    pipeline = PipelineSpec(memory_bytes=parallel.pipeline.memory_bytes if parallel.pipeline else None)
    tensor = TensorSpec(memory_bytes=parallel.tensor.memory_bytes if parallel.tensor else None)
    return spec.model_copy(
        update={"parallel": parallel.model_copy(update={"pipeline": pipeline, "tensor": tensor})}
    )


def _whole(arranger: Arranger, num_ranks: int, links: LinkCosts, *, with_shards: bool) -> Iterator[KindOfLayout]:
    """The kinds whose ranks compute with whole matrices; with those of `data: sharded` if `with_shards`."""
    profile, choices = arranger.profile, arranger.choices
    alone = choose(num_ranks, profile, links, replace(choices, num_workers=1))
    yield _kind("replicated", alone)
    if num_ranks > 1:
        if with_shards:
            yield _sharded(alone, profile, links, choices.memory_bytes)
        stages = [
            choose(num_ranks, profile, links, replace(choices, num_workers=workers))
            for workers in range(2, min(num_ranks, len(profile.layers)) + 1)
        ]
        yield from _best("pipeline", [layout for layout in stages if layout.num_workers > 1])


def _on_grids(arranger: StackedArranger, num_ranks: int) -> Iterator[KindOfLayout]:
    grids = [layout for layout in arranger.candidates(num_ranks) if layout.grid.num_ranks > 1]
    alone = [layout for layout in grids if layout.num_workers == 1]
    shards = [layout for layout in alone if layout.grid.kind == "shards"]
    yield from _best("sharded", shards)
    yield from _best("tensor", [layout for layout in alone if layout not in shards])
    yield from _best("tensor in stages", [layout for layout in grids if layout not in alone])


def _best(kind: str, layouts: list[Layout]) -> Iterator[KindOfLayout]:
    if layouts:
        yield _kind(kind, min(layouts, key=lambda one: (not one.fits, one.predicted_step_s)))


def _kind(kind: str, layout: Layout) -> KindOfLayout:
    return KindOfLayout(
        kind,
        layout.num_replicas,
        layout.num_stages,
        name_for_people(layout.grid),
        layout.predicted_step_s,
        layout.most_bytes,
        layout.fits,
    )


def _sharded(alone: Layout, profile: ModelProfile, links: LinkCosts, memory_bytes: float) -> KindOfLayout:
    ranks = alone.num_replicas
    tied_bytes = sum((len(tied.layers) - 1) * tied.parameter_bytes for tied in profile.tied)
    weights = sum(layer.parameter_bytes for layer in profile.layers) - tied_bytes
    state = 2 * weights + sum(layer.optimizer_bytes for layer in profile.layers)
    summing_s = links.all_reduce_s(ranks, weights)
    rounds = 3 * len(profile.layers) * (ranks - 1)
    gathering_s = 3 * links.transfer_s(weights * (ranks - 1) / ranks) + rounds * links.latency_s
    largest = max(layer.parameter_bytes for layer in profile.layers)
    peak = int(max(alone.peak_bytes) - state + state / ranks + 2 * largest)
    step_s = alone.predicted_step_s - summing_s + alone.num_micro_batches * gathering_s
    return KindOfLayout("sharded", ranks, 1, "none", step_s, peak, peak <= memory_bytes)


def kinds_as_text(kinds: tuple[KindOfLayout, ...], nodes: int) -> str:
    """The comparison on `nodes` nodes as a table, the fastest kind that fits first."""
    lines = [f"kinds on {nodes} nodes    replicas  stages  grid             step   peak memory"]
    for one in kinds:
        peak = f"{one.peak_bytes / 2**20:,.2f} MiB"
        line = f"{one.kind:20}{one.replicas:10}{one.stages:8}  {one.grid:12}{1e3 * one.step_s:7,.1f} ms{peak:>14}"
        lines.append(line if one.fits else f"{line}  does not fit")
    return "\n".join(lines)
