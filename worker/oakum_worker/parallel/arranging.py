"""What arrangers have in common: measurements, the layouts that follow from them, and the curve of these.

An arranger chooses the fastest layout that the spec allows for a number of ranks, from the spec, the model, and
measurements of the model's computing and of links. All ranks use one rank's measurements, so all choose alike.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist

from oakum_worker.devices import device_memory_bytes
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.parallel.link_costs import USUAL_LINKS, LinkCosts, measure_links
from oakum_worker.parallel.step_engine import Curve
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

MOST_RANKS = 64
"""Most ranks for which the curve is predicted; for more ranks it comes from measurements only."""
EQUAL = 1e-9
"""Largest relative difference of times that count as equal."""


class AnyLayout(Protocol):
    """Interface of what is predicted of a layout."""

    @property
    def predicted_step_s(self) -> float:
        """Seconds of a step."""

    @property
    def samples_per_s(self) -> float:
        """Speed of training."""

    @property
    def most_bytes(self) -> float:
        """Peak memory of the rank that needs most."""

    @property
    def fits(self) -> bool:
        """Whether every rank has that much memory."""


P = TypeVar("P")
"""The costs of a model's computing, a dataclass."""
L = TypeVar("L", bound=AnyLayout)


@dataclasses.dataclass(frozen=True)
class Measurements(Generic[P, L]):
    """What is known of the model and of links, with the layouts that were found by it: other measurements are
    another value, which begins without any."""

    profile: P | None = None
    """None: not measured."""
    links: LinkCosts | None = None
    """None: not measured."""
    layouts: dict[int, L] = dataclasses.field(default_factory=dict, compare=False)
    """Number of ranks -> layout."""


class LayoutArranger(ABC, Generic[P, L]):
    """Chooses a trainer's layout on any number of ranks, and predicts the trainer's speed."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """An arranger that knows no measurements."""
        self._task, self._spec = task, spec
        self._device = next(task.model.parameters()).device
        self._has_warned = False
        self._known: Measurements[P, L] = Measurements()

    def _know(self, profile: P | None, links: LinkCosts | None) -> None:
        known = Measurements[P, L](profile, links)
        if self._known != known:  # else the layouts hold that were found
            self._known = known

    @abstractmethod
    def _search(self, world_size: int) -> L:
        """The best layout of `world_size` ranks by the present measurements. Raises `ScheduleError` or `TaskError`
        if there is none."""

    @abstractmethod
    def _measured(self) -> P:
        """Measure the model, of which this rank has the whole."""

    @staticmethod
    @abstractmethod
    def _profile_of(document: dict[str, Any]) -> P:
        """The profile of which `dataclasses.asdict` and JSON have made the document."""

    def layout(self, world_size: int) -> L:
        """The layout of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        found = self._known.layouts
        if world_size not in found:
            try:
                found[world_size] = self._search(world_size)
            except ScheduleError as error:
                raise TaskError(f"the model cannot be spread over {world_size} ranks: {error}") from error
        return found[world_size]

    def layouts(self, most_nodes: int) -> tuple[L, ...]:
        """The layout that is predicted to be fastest for each number of nodes from 1 to `most_nodes`. Raises
        `TaskError` where one has none."""
        per_node = self._spec.ranks_per_node
        return tuple(self.layout(nodes * per_node) for nodes in range(1, most_nodes + 1))

    @property
    def measurements(self) -> dict[str, Any]:
        """This rank's measurements of model and links as a JSON document, to be sent to the other ranks; null for
        what it has not measured."""
        profile, links = self._known.profile, self._known.links
        return {
            "profile": None if profile is None else dataclasses.asdict(profile),  # type: ignore[call-overload]
            "links": None if links is None else dataclasses.asdict(links),
        }

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Replace this rank's measurements by those of the lowest rank that has any. `told` has every rank's
        `measurements`, by rank; model and links are looked for separately."""
        profile = next((known["profile"] for known in told if known["profile"] is not None), None)
        links = next((known["links"] for known in told if known["links"] is not None), None)
        self._know(
            None if profile is None else self._profile_of(profile), None if links is None else LinkCosts(**links)
        )

    @property
    def knows_model(self) -> bool:
        """Whether the model has been measured."""
        return self._known.profile is not None

    @property
    def knows_links(self) -> bool:
        """Whether the links have been measured."""
        return self._known.links is not None

    @property
    def links(self) -> LinkCosts:
        """The costs of the links; before they are measured, usual ones."""
        return self._known.links or USUAL_LINKS

    def measure_model(self) -> P:
        """Measure the model, keep the result, from which speeds are then predicted, and return it. This rank has
        to have the whole model."""
        profile = self._measured()
        self._know(profile, self._known.links)
        return profile

    def measure_links(self, group: dist.ProcessGroup, rank: int) -> None:
        """Measure latency and bandwidth between two ranks, which alone keep the result. Collective among the ranks
        of `group`. Raises `GroupError` when a rank is gone."""
        self.note_links(measure_links(group, rank, self._spec.ranks_per_node, self._device))

    def note_links(self, links: LinkCosts | None) -> None:
        """Use these measurements of the links; None means that they are not measured."""
        self._know(self._known.profile, links)

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second), predicted from the measurements; empty before the model is measured. Takes
        seconds for up to 64 ranks if the measurements are new."""
        if not self.knows_model:
            return ()
        points = curve(self.layouts(min(self._spec.max_nodes, MOST_RANKS // self._spec.ranks_per_node)))
        return tuple(point for point in points if point[0] >= self._spec.min_nodes)

    @property
    def global_batch(self) -> int:
        """Number of samples of a step: of the smallest one where the spec has its batches grow."""
        return min([self._spec.global_batch, *(samples for _, samples in self._spec.batch_schedule)])

    @property
    @abstractmethod
    def memory_bytes(self) -> float:
        """Bytes that one rank may use."""

    def _memory_bytes(self, asked: float | None) -> float:
        return asked or device_memory_bytes(self._device) // self._spec.ranks_per_node

    def _precision(self) -> Any:
        halves = self._spec.precision == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=halves)

    def _warn_of_memory(self, layout: L, world_size: int) -> None:
        if layout.fits or self._has_warned or not self.knows_model:
            return
        self._has_warned = True
        warnings.warn(
            f"on {world_size} ranks a rank needs about {layout.most_bytes:,} bytes for its part of the model and "
            f"has {self.memory_bytes:,.0f}: raise min_nodes, or lower micro_batch",
            TrainingWarning,
            stacklevel=3,
        )


def best_of(found: Collection[L], among_equals: Callable[[L], Any]) -> L:
    """The fastest of the layouts that fit, or of several as fast the one for which `among_equals` is smallest.
    Where none fits, the one that needs least memory."""
    fitting = [layout for layout in found if layout.fits]
    if not fitting:
        return min(found, key=lambda layout: layout.most_bytes)
    longest_s = (1 + EQUAL) * min(layout.predicted_step_s for layout in fitting)
    return min((layout for layout in fitting if layout.predicted_step_s <= longest_s), key=among_equals)


def curve(layouts: Iterable[AnyLayout]) -> Curve:
    """The points (nodes, samples per second) of a trainer's scalability curve, each faster than the one before.
    `layouts` are those of 1, 2, ... nodes. One that does not fit into memory, or is not faster than fewer nodes,
    gives no point."""
    points: list[tuple[int, float]] = []
    for num_nodes, layout in enumerate(layouts, start=1):
        if layout.fits and (not points or layout.samples_per_s > (1 + EQUAL) * points[-1][1]):
            points.append((num_nodes, layout.samples_per_s))
    return tuple(points)
