"""Which arrangement a pipeline trainer gets for a number of ranks: the fastest that its spec allows.

It follows from the spec, the chain, and what was measured of layers and links. All ranks have the same
measurements, those of one of them, so they come to the same arrangement.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.chain import Chain
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.micro_batch_profile import device_memory_bytes
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.costs import LayerCost, Links, ModelProfile, Tied
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, best_layouts, choose, curve
from oakum_worker.parallel.pipeline.measuring import measure_chain, measure_links, sizes_up_to
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

USUAL_LINKS = Links(latency_s=100e-6, bandwidth_bytes_per_s=1e9)
"""Until they are measured."""
_AUTO = ("1f1b", "chimera", "zero-bubble")
MOST_RANKS = 64
"""That layouts are searched for; beyond these the curve is left to measurements."""
Curve = tuple[tuple[int, float], ...]
"""(nodes, samples per second), rising in both."""


def layers_of(task: Task) -> Chain:
    """The task's chain. Raises `TaskError` where it has none, or one that leaves out what is to be trained."""
    if task.chain is None:
        raise TaskError(
            "parallel.pipeline is asked for and the task does not name its layers: return "
            "Task(..., chain=oakum_worker.chain.Chain(...))"
        )
    if not len(task.chain.layers):
        raise TaskError("the task's chain has no layer: name the model's layers in Chain(layers=...)")
    held = {id(parameter) for layer in task.chain.layers for parameter in layer.parameters()}
    stray = [name for name, p in task.model.named_parameters() if p.requires_grad and id(p) not in held]
    if stray:
        others = " and others" if len(stray) > 3 else ""
        raise TaskError(
            f"{', '.join(stray[:3])}{others} belong to no layer of the task's chain: name the modules that hold "
            "them in Chain(layers=...), or freeze them"
        )
    return task.chain


class Arranger:
    """Arranges the generations of one trainer."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task does not name its layers, or not all of them."""
        assert spec.parallel.pipeline is not None
        self._task, self._spec = task, spec
        self._chain = layers_of(task)
        self._options = spec.parallel.pipeline
        self._device = next(task.model.parameters()).device
        self.choices = self._choices_of_spec()
        """What the spec leaves open, and what it sets."""
        self._arranged: dict[int, Arrangement] = {}
        self._profile: ModelProfile | None = None
        self._links: Links | None = None
        self._curve: tuple[tuple[ModelProfile, Links | None], Curve] | None = None
        """What was predicted last, and by which measurements."""
        self._warned = False

    def __call__(self, world_size: int) -> Arrangement:
        """The arrangement of a generation of so many ranks. Raises `TaskError` where there is none."""
        if world_size not in self._arranged:
            self._arranged[world_size] = self._arrange(world_size)
        return self._arranged[world_size]

    @property
    def measurements(self) -> dict[str, Any]:
        """What is known, as a JSON document for the other ranks."""
        return {
            "profile": None if self._profile is None else dataclasses.asdict(self._profile),
            "links": None if self._links is None else dataclasses.asdict(self._links),
        }

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Take the measurements of the lowest rank that has any, of those that all ranks told."""
        profile = next((known["profile"] for known in told if known["profile"] is not None), None)
        links = next((known["links"] for known in told if known["links"] is not None), None)
        self._profile = None if profile is None else _profile(profile)
        self._links = None if links is None else Links(**links)
        self._arranged.clear()

    @property
    def knows_layers(self) -> bool:
        """Whether the layers have been measured."""
        return self._profile is not None

    @property
    def knows_links(self) -> bool:
        """Whether the links have been measured."""
        return self._links is not None

    def measure_layers(self) -> None:
        """Time the layers. The task's model has to be whole."""
        size = self.choices.micro_batch
        sizes = sizes_up_to(self._spec.global_batch) if size is None else [size]
        self._profile = measure_chain(self._task, self._chain, sizes, self._precision)
        self._arranged.clear()

    def measure_links(self, group: dist.ProcessGroup, rank: int) -> None:
        """Time messages over the group of all ranks, each of which is due here. Raises `GroupError`."""
        self._links = measure_links(group, rank, self._spec.ranks_per_node, self._device)

    def note_links(self, links: Links | None) -> None:
        """Take what was measured of them."""
        self._links = links

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second) by the measurements; empty before there are any.

        Seconds for up to 64 ranks where the measurements are new; else what it was before.
        """
        if self._profile is None:
            return ()
        known = self._profile, self._links
        if self._curve is None or self._curve[0] != known:
            self._curve = known, self._predict_curve()
        return self._curve[1]

    def _predict_curve(self) -> Curve:
        most_nodes = min(self._spec.max_nodes, MOST_RANKS // self._spec.ranks_per_node)
        points = curve(self.layouts(most_nodes)) if most_nodes else ()
        return tuple((nodes, rate) for nodes, rate in points if nodes >= self._spec.min_nodes)

    def layouts(self, most_nodes: int) -> tuple[Layout, ...]:
        """The best layout for each number of nodes from 1 to `most_nodes`, by the measurements."""
        assert self._profile is not None
        per_node = self._spec.ranks_per_node
        best = best_layouts(most_nodes * per_node, self._profile, self._links or USUAL_LINKS, self.choices)
        return best[per_node - 1 :: per_node]

    def name_of(self, layout: Layout) -> str:
        """What the layout's ranks follow, in the words of the spec; those of one stage follow nothing."""
        if layout.num_workers == 1:
            return "none"
        return "message-driven" if self._options.schedule == "message-driven" else layout.schedule

    def _arrange(self, world_size: int) -> Arrangement:
        profile = self._profile or self._nominal()
        try:
            layout = choose(world_size, profile, self._links or USUAL_LINKS, self.choices)
        except ScheduleError as error:
            raise TaskError(f"the model cannot be spread over {world_size} ranks: {error}") from error
        self._warn_of_memory(layout, world_size)
        return Arrangement(
            world_size=world_size,
            num_replicas=layout.num_replicas,
            schedule=layout.build(),
            cuts=layout.cuts,
            recompute=layout.recompute,
            message_driven=self.name_of(layout) == "message-driven",
            in_flight=self._options.in_flight,
        )

    def _choices_of_spec(self) -> Choices:
        options, spec = self._options, self._spec
        name = options.schedule
        memory = options.memory_bytes or device_memory_bytes(self._device) // spec.ranks_per_node
        return Choices(
            global_batch=min([spec.global_batch, *(samples for _, samples in spec.batch_schedule)]),
            memory_bytes=memory,
            schedules=_AUTO if name == "auto" else ("1f1b",) if name == "message-driven" else (name,),
            num_workers=None if options.stages == "auto" else options.stages,
            micro_batch=options.micro_batch or spec.micro_batch,
            recompute=None if options.recompute == "auto" else options.recompute,
            num_pipes=options.pipes,
            message_driven=name == "message-driven",
            in_flight=options.in_flight,
        )

    def _nominal(self) -> ModelProfile:
        """Before anything is measured: what a layer takes goes with its parameters, and nothing takes no time."""
        sizes = [sum(p.nbytes for p in layer.parameters()) for layer in self._chain.layers]
        costs = [1e-9 * (size + 1 + max(sizes) / 100) for size in sizes]
        layers = tuple(LayerCost((cost,), (2 * cost,), size) for cost, size in zip(costs, sizes, strict=True))
        return ModelProfile((self.choices.micro_batch or 1,), layers)

    def _precision(self) -> Any:
        halves = self._spec.precision == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=halves)

    def _warn_of_memory(self, layout: Layout, world_size: int) -> None:
        if layout.fits or self._warned or self._profile is None:
            return
        self._warned = True
        warnings.warn(
            f"on {world_size} ranks one needs about {max(layout.peak_bytes):,} bytes for its stages and has "
            f"{self.choices.memory_bytes:,.0f}: raise min_nodes, or lower micro_batch",
            TrainingWarning,
            stacklevel=2,
        )


def _profile(document: dict[str, Any]) -> ModelProfile:
    layers = tuple(
        LayerCost(**{name: _frozen(value) for name, value in one.items()}) for one in document["layers"]
    )
    tied = tuple(Tied(**{**one, "layers": tuple(one["layers"])}) for one in document["tied"])
    sizes = tuple(document["micro_batches"])
    return ModelProfile(sizes, layers, document["input_bytes"], document["smallest"], tied)


def _frozen(value: Any) -> Any:
    """Lists, which JSON makes of tuples, as tuples."""
    return tuple(value) if isinstance(value, list) else value
