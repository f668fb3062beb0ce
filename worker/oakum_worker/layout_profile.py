"""How a pipeline trainer would be laid out on each number of nodes, by what its layers take on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from oakum_worker.errors import SpecError
from oakum_worker.micro_batch_profile import device_name
from oakum_worker.parallel.normalisation import normalise
from oakum_worker.parallel.pipeline.arranging import MOST_RANKS, USUAL_LINKS, Arranger
from oakum_worker.parallel.pipeline.costs import Links
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import PipelineSpec
from oakum_worker.task import load_task


@dataclass(frozen=True, slots=True)
class NodesLayout:
    """The fastest layout of a number of nodes."""

    nodes: int
    replicas: int
    stages: int
    """Parts of the model, in each replica."""
    schedule: str
    micro_batch: int
    """Samples of the largest."""
    micro_batches: int
    """Of each replica, in a step."""
    recompute: bool
    step_s: float
    samples_per_s: float
    peak_bytes: int
    """Of the rank that needs most."""
    fits: bool
    """Whether a rank has so much memory."""


@dataclass(frozen=True, slots=True)
class LayoutProfile:
    """What was found."""

    layers: int
    global_batch: int
    memory_bytes: int
    """Of one rank."""
    device: str
    latency_s: float
    bandwidth_bytes_per_s: float
    layouts: tuple[NodesLayout, ...]


def profile_layouts(
    spec: TrainerSpec,
    *,
    most_nodes: int | None = None,
    memory_bytes: int | None = None,
    links: Links = USUAL_LINKS,
    progress: Callable[[str], None] = lambda _: None,
) -> LayoutProfile:
    """The layouts of 1 to `most_nodes` nodes, by default the spec's `max_nodes`.

    `memory_bytes` is what one rank may use, by default what the spec says or the device has. A spec without a
    pipeline is taken as one that leaves all to us. Raises `TaskError` where the task fails or does not name its
    layers, and `SpecError` for more nodes than layouts are searched for.
    """
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
    arranger = Arranger(task, spec)
    progress("time the layers")
    arranger.measure_layers()
    arranger.note_links(links)
    progress("try the layouts")
    layouts = arranger.layouts(nodes)
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
                micro_batch=layout.micro_batch,
                micro_batches=layout.num_micro_batches,
                recompute=layout.recompute,
                step_s=layout.predicted_step_s,
                samples_per_s=layout.samples_per_s,
                peak_bytes=max(layout.peak_bytes),
                fits=layout.fits,
            )
            for number, layout in enumerate(layouts, start=1)
        ),
    )
