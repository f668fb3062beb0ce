"""Chooses a pipeline trainer's arrangement for a number of ranks: the fastest one that the spec allows.

The arrangement follows from the spec, the chain, and the measurements of layers and links. All ranks use one
rank's measurements, so all choose the same arrangement.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from oakum_worker.chain import Chain
from oakum_worker.devices import device_memory_bytes
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.costs import LayerCost, LinkCosts, ModelProfile, Tied
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, best_layouts, choose, curve
from oakum_worker.parallel.pipeline.measuring import measure_chain, measure_links, sizes_up_to
from oakum_worker.parallel.step_engine import Curve
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

USUAL_LINKS = LinkCosts(latency_s=100e-6, bandwidth_bytes_per_s=1e9)
"""Costs of links that are assumed until the links are measured."""


class _Asked(NamedTuple):
    """The choices that a value of the spec's `schedule` leaves."""

    schedules: tuple[str, ...]
    """Names of the schedules to choose from."""
    message_driven: bool = False
    """Whether workers process messages in the order of arrival; the schedule then only places the stages."""


_ASKED = {
    "auto": _Asked(("1f1b", "chimera", "zero-bubble")),
    "message-driven": _Asked(("1f1b",), message_driven=True),
}
"""The choices of those values of `schedule` that are not a schedule's name."""
MOST_RANKS = 64
"""Most ranks for which the curve is predicted; for more ranks it comes from measurements only."""


def layers_of(task: Task) -> Chain:
    """The task's chain. Raises `TaskError` if the task has no chain, the chain has no layers, or a parameter that
    requires a gradient is in none of its layers."""
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
    """Chooses how a pipeline trainer is arranged on any number of ranks, from the spec and from measurements, and
    predicts the trainer's speed."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """`task` has to name its layers in `Task.chain`, and the spec needs a pipeline. Raises `TaskError` if the
        chain is missing, is empty, or leaves out a parameter that is trained."""
        assert spec.parallel.pipeline is not None
        self._task, self._spec = task, spec
        self._chain = layers_of(task)
        self._options = spec.parallel.pipeline
        self._device = next(task.model.parameters()).device
        self.choices = self._choices_of_spec()
        """The choices that the spec leaves to the search for a layout."""
        self._arranged: dict[int, Arrangement] = {}
        self._profile: ModelProfile | None = None
        self._links: LinkCosts | None = None
        self._curve: tuple[tuple[ModelProfile, LinkCosts | None], Curve] | None = None
        """The last predicted curve, after the measurements that it was predicted from."""
        self._warned = False

    def __call__(self, world_size: int) -> Arrangement:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        if world_size not in self._arranged:
            self._arranged[world_size] = self._arrange(world_size)
        return self._arranged[world_size]

    @property
    def measurements(self) -> dict[str, Any]:
        """This rank's measurements of layers and links as a JSON document, to be sent to the other ranks; null for
        what it has not measured."""
        return {
            "profile": None if self._profile is None else dataclasses.asdict(self._profile),
            "links": None if self._links is None else dataclasses.asdict(self._links),
        }

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Replace this rank's measurements by those of the lowest rank that has any. `told` has every rank's
        `measurements`, by rank; layers and links are looked for separately."""
        profile = next((known["profile"] for known in told if known["profile"] is not None), None)
        links = next((known["links"] for known in told if known["links"] is not None), None)
        self._profile = None if profile is None else _profile(profile)
        self._links = None if links is None else LinkCosts(**links)
        self._arranged.clear()

    @property
    def profile(self) -> ModelProfile:
        """The measured costs of the layers; before they are measured, assumed ones that grow with their
        parameters."""
        return self._profile or self._nominal()

    @property
    def links(self) -> LinkCosts | None:
        """The measured costs of the links; None before they are measured."""
        return self._links

    @property
    def knows_model(self) -> bool:
        """Whether the layers have been measured."""
        return self._profile is not None

    @property
    def knows_links(self) -> bool:
        """Whether the links have been measured."""
        return self._links is not None

    def measure_model(self) -> None:
        """Measure the times of the layers. This rank has to have the whole model."""
        size = self.choices.micro_batch
        sizes = sizes_up_to(self._spec.global_batch) if size is None else [size]
        averages = self._spec.ema is not None
        self._profile = measure_chain(self._task, self._chain, sizes, self._precision, averages=averages)
        self._arranged.clear()

    def measure_links(self, group: dist.ProcessGroup, rank: int) -> None:
        """Measure latency and bandwidth between two ranks, which alone keep the result. Collective among the ranks
        of `group`. Raises `GroupError` when a rank is gone."""
        self._links = measure_links(group, rank, self._spec.ranks_per_node, self._device)

    def note_links(self, links: LinkCosts | None) -> None:
        """Use these measurements of the links; None means that they are not measured."""
        self._links = links

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second), predicted from the measurements; empty before the layers are measured.

        Takes seconds for up to 64 ranks if the measurements are new; otherwise returns the last curve at once.
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
        """The layout that is predicted to be fastest for each number of nodes from 1 to `most_nodes`. The layers
        have to be measured first; unmeasured links count as `USUAL_LINKS`."""
        assert self._profile is not None
        per_node = self._spec.ranks_per_node
        best = best_layouts(most_nodes * per_node, self._profile, self._links or USUAL_LINKS, self.choices)
        return best[per_node - 1 :: per_node]

    def name_of(self, layout: Layout) -> str:
        """The layout's schedule as the spec names it; `none` for replicas of one rank."""
        if layout.num_workers == 1:
            return "none"
        return self._options.schedule if self.choices.message_driven else layout.schedule

    def _arrange(self, world_size: int) -> Arrangement:
        profile = self.profile
        try:
            layout = choose(world_size, profile, self._links or USUAL_LINKS, self.choices)
        except ScheduleError as error:
            raise TaskError(f"the model cannot be spread over {world_size} ranks: {error}") from error
        self._warn_of_memory(layout, world_size)
        return self.arranged(layout, world_size)

    def arranged(self, layout: Layout, world_size: int) -> Arrangement:
        """The arrangement of `world_size` ranks by a layout."""
        return Arrangement(
            world_size=world_size,
            num_replicas=layout.num_replicas,
            schedule=layout.build(),
            cuts=layout.cuts,
            recompute=layout.recompute,
            message_driven=self.choices.message_driven and layout.num_workers > 1,
            in_flight=self._options.in_flight,
        )

    def _choices_of_spec(self) -> Choices:
        options, spec = self._options, self._spec
        asked = _ASKED.get(options.schedule) or _Asked((options.schedule,))
        memory = options.memory_bytes or device_memory_bytes(self._device) // spec.ranks_per_node
        return Choices(
            global_batch=min([spec.global_batch, *(samples for _, samples in spec.batch_schedule)]),
            memory_bytes=memory,
            schedules=asked.schedules,
            num_workers=None if options.stages == "auto" else options.stages,
            micro_batch=options.micro_batch or spec.micro_batch,
            recompute=None if options.recompute == "auto" else options.recompute,
            num_pipes=options.pipes,
            message_driven=asked.message_driven,
            in_flight=options.in_flight,
        )

    def _nominal(self) -> ModelProfile:
        """An assumed profile for use before the layers are measured: a layer's time grows with its parameters'
        bytes and is never zero."""
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
            f"on {world_size} ranks a rank needs about {max(layout.peak_bytes):,} bytes for its stages and has "
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
    """A list as a tuple, any other value as it is: JSON turns tuples into lists."""
    return tuple(value) if isinstance(value, list) else value
