"""The fastest pipeline layout of a trainer for each number of nodes, predicted from times of its layers on this
machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oakum_worker.devices import device_name
from oakum_worker.errors import SpecError
from oakum_worker.parallel.arranging import MOST_RANKS
from oakum_worker.parallel.grid_stages.arranging import StackedArranger
from oakum_worker.parallel.grids.layouts import grids_up_to
from oakum_worker.parallel.link_costs import USUAL_LINKS, LinkCosts
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.profiling.grid_profile import name_for_people
from oakum_worker.profiling.kinds import KindOfLayout, compare_kinds
from oakum_worker.profiling.refusal import refuse_without_gradients
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import PipelineSpec
from oakum_worker.task import load_task


@dataclass(frozen=True, slots=True)
class NodesLayout:
    """The layout that is predicted to be fastest on a number of nodes, with its step time, speed and memory."""

    nodes: int
    replicas: int
    stages: int
    """Parts of the model, in each replica."""
    schedule: str
    grid: str
    """The grid of each stage, such as `cube of 2`; `none` where a stage is one rank."""
    micro_batch: int
    """Samples of the largest micro-batch."""
    micro_batches: int
    """Micro-batches of each replica in a step."""
    recompute: bool
    step_s: float
    samples_per_s: float
    peak_bytes: int
    """Peak memory of the rank that needs most, in bytes."""
    fits: bool
    """Whether the peak is within a rank's memory."""


@dataclass(frozen=True, slots=True)
class LayoutProfile:
    """The fastest layout for each number of nodes, with the memory of a rank and the speed of links that were
    assumed."""

    layers: int
    global_batch: int
    memory_bytes: int
    """Memory that one rank may use, in bytes."""
    device: str
    latency_s: float
    bandwidth_bytes_per_s: float
    layouts: tuple[NodesLayout, ...]
    kinds: tuple[KindOfLayout, ...] = ()
    """The ways of sharing the model among the ranks of the largest number of nodes, compared."""
    without_grids: str = ""
    """Why the model goes onto none of the grids that the spec leaves to choose; empty where it goes onto one."""


def profile_layouts(
    spec: TrainerSpec,
    *,
    most_nodes: int | None = None,
    memory_bytes: int | None = None,
    links: LinkCosts = USUAL_LINKS,
    progress: Callable[[str], None] = lambda _: None,
) -> LayoutProfile:
    """Time the layers of the spec's model on this machine, and predict the fastest layout for each of 1 to
    `most_nodes` nodes. Returns the predictions.

    `most_nodes` is by default the spec's `max_nodes`, or fewer where that is more ranks than layouts are
    searched for. `memory_bytes` is what one rank may use, by default what the spec says or the device has.
    `progress` is called with the name of each next step. A spec without a pipeline is treated as one with all
    pipeline options at their defaults. Raises `TaskError` where the task fails or does not name its layers, and
    `SpecError` for more ranks than layouts are searched for and where the spec trains without gradients.
    """
    refuse_without_gradients(spec)
    nodes = min(spec.max_nodes, MOST_RANKS // spec.ranks_per_node) if most_nodes is None else most_nodes
    if nodes * spec.ranks_per_node > MOST_RANKS or nodes < 1:
        raise SpecError(
            f"layouts of {nodes} nodes with {spec.ranks_per_node} ranks each are asked for: give at most "
            f"{MOST_RANKS} ranks"
        )
    pipeline = spec.parallel.pipeline or PipelineSpec()
    if memory_bytes is not None:
        pipeline = pipeline.model_copy(update={"memory_bytes": memory_bytes})
    spec = spec.model_copy(update={"parallel": spec.parallel.model_copy(update={"pipeline": pipeline})})
    torch.set_num_threads(spec.threads_per_rank)
    progress("build the task")
    task = load_task(spec)
    normalise(task.model, spec.parallel.batch_norm)
    arranger = StackedArranger(task, spec) if spec.parallel.tensor is not None else Arranger(task, spec)
    progress("time the layers")
    arranger.measure_model()
    arranger.note_links(links)
    progress("try the layouts")
    layouts = arranger.layouts(nodes)
    kinds = compare_kinds(task, spec, arranger, nodes * spec.ranks_per_node, links)
    assert task.chain is not None
    return LayoutProfile(
        layers=len(task.chain.layers),
        global_batch=arranger.choices.global_batch,
        memory_bytes=int(arranger.choices.memory_bytes),
        device=device_name(next(task.model.parameters()).device),
        latency_s=links.latency_s,
        bandwidth_bytes_per_s=links.bandwidth_bytes_per_s,
        layouts=tuple(
            NodesLayout(
                nodes=number,
                replicas=layout.num_replicas,
                stages=layout.num_stages,
                schedule=arranger.name_of(layout),
                grid=name_for_people(layout.grid),
                micro_batch=layout.micro_batch,
                micro_batches=layout.num_micro_batches,
                recompute=layout.recompute,
                step_s=layout.predicted_step_s,
                samples_per_s=layout.samples_per_s,
                peak_bytes=layout.most_bytes,
                fits=layout.fits,
            )
            for number, layout in enumerate(layouts, start=1)
        ),
        kinds=kinds,
        without_grids=_without_grids(arranger, nodes * spec.ranks_per_node),
    )


def _without_grids(arranger: Arranger, num_ranks: int) -> str:
    if not isinstance(arranger, StackedArranger):
        return ""
    refused = arranger.grids.refusals(num_ranks)
    several = [grid for grid in grids_up_to(num_ranks) if grid.num_ranks > 1]
    return next(iter(refused.values())) if several and len(refused) == len(several) else ""
