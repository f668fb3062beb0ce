"""What arrangers have in common: measurements, the layouts that follow from them, and the curve of these.

An arranger chooses the fastest layout that the spec allows for a number of ranks, from the spec, the model, and
measurements of the model's computing and of links. All ranks use one rank's measurements, so all choose alike.
"""

from __future__ import annotations

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from oakum_worker.devices import device_memory_bytes
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.parallel.link_costs import USUAL_LINKS, LinkCosts, measure_links
from oakum_worker.parallel.split_state import Tell
from oakum_worker.parallel.stations import num_together
from oakum_worker.parallel.stations import other_end as far_end
from oakum_worker.parallel.step_engine import Curve
from oakum_worker.protocol import Station
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
A = TypeVar("A")
"""What says which rank holds and computes what."""


@dataclasses.dataclass(frozen=True)
class Measurements(Generic[P, L]):
    """What is known of the model and of links, with the layouts that were found by it: other measurements are
    another value, which begins without any."""

    profile: P | None = None
    """None: not measured."""
    links: LinkCosts | None = None
    """None: not measured."""
    spans_nodes: bool = False
    """Whether the links were measured between two nodes, and not within one."""
    together: LinkCosts | None = None
    """The links between ranks of one fragment, which are kept where `links` are others; None: not measured."""
    layouts: dict[int, L] = dataclasses.field(default_factory=dict, compare=False)
    """Number of ranks -> layout."""


class LayoutArranger(ABC, Generic[P, L, A]):
    """Chooses a trainer's layout on any number of ranks, and predicts the trainer's speed."""

    _profile_type: type[P]

    def __init__(self, task: Task, spec: TrainerSpec, memory_bytes: float | None) -> None:
        """An arranger that knows no measurements. A rank may use `memory_bytes`; None: what the device has for
        it."""
        self._task, self._spec = task, spec
        self._device = next(task.model.parameters()).device
        self._has_warned = False
        self.known: Measurements[P, L] = Measurements()
        self._num_together = 1
        self._gain: tuple[Measurements[P, L], float | None] = (self.known, None)
        self.memory_bytes = self._memory_bytes(memory_bytes)
        """Bytes that one rank may use."""

    def _know(
        self, profile: P | None, links: LinkCosts | None, *, spans_nodes: bool, together: LinkCosts | None = None
    ) -> None:
        known = Measurements[P, L](profile, links, spans_nodes, together or self.known.together)
        if self.known != known:  # else the layouts hold that were found
            self.known = known

    def __call__(self, world_size: int) -> A:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layout = self.layout(world_size)
        self._warn_of_memory(layout, world_size)
        return self._arrange(layout, world_size)

    @abstractmethod
    def _arrange(self, layout: L, world_size: int) -> A:
        """Which rank computes which part of the model, for `world_size` ranks in this layout."""

    @abstractmethod
    def _search(self, world_size: int) -> L:
        """The best layout of `world_size` ranks by the present measurements. Raises `ScheduleError` or `TaskError`
        if there is none."""

    @abstractmethod
    def _measure(self) -> P:
        """Measure the model, of which this rank has the whole."""

    @abstractmethod
    def _assume(self) -> P:
        """The profile that is assumed before the model is measured."""

    @property
    def profile(self) -> P:
        """The measured costs of the model's computing; before it is measured, assumed ones."""
        return self.known.profile or self._assume()

    @property
    def links(self) -> LinkCosts:
        """The costs of the links; before they are measured, usual ones."""
        return self.known.links or USUAL_LINKS

    def layout(self, world_size: int) -> L:
        """The layout of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layouts = self.known.layouts
        if world_size not in layouts:
            try:
                layouts[world_size] = self._search(world_size)
            except ScheduleError as error:
                raise TaskError(f"the model cannot be spread over {world_size} ranks: {error}") from error
        return layouts[world_size]

    def layouts(self, most_nodes: int) -> tuple[L, ...]:
        """The layout that is predicted to be fastest for each number of nodes from 1 to `most_nodes`. Raises
        `TaskError` where one has none."""
        per_node = self._spec.ranks_per_node
        return tuple(self.layout(nodes * per_node) for nodes in range(1, most_nodes + 1))

    @property
    def measurements(self) -> dict[str, Any]:
        """This rank's measurements of model and links as a JSON document, to be sent to the other ranks; null for
        what it has not measured."""
        profile, links, together = self.known.profile, self.known.links, self.known.together
        return {
            "profile": None if profile is None else dataclasses.asdict(profile),  # type: ignore[call-overload]
            "links": None if links is None else dataclasses.asdict(links),
            "spans_nodes": self.known.spans_nodes,
            "together": None if together is None else dataclasses.asdict(together),
        }

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Replace this rank's measurements by those of the lowest rank that has any. `told` has every rank's
        `measurements`, by rank; model and links are looked for separately, and links between nodes first."""
        profile = next((known["profile"] for known in told if known["profile"] is not None), None)
        # A rank of an earlier version, which measures once, does not say between which ranks.
        together = next((k["together"] for k in told if k.get("together") is not None), None)
        measured = [(k["links"], k.get("spans_nodes", True)) for k in told if k["links"] is not None]
        links, spans_nodes = max(measured, key=lambda one: one[1], default=(None, False))
        self._know(
            None if profile is None else TypeAdapter(self._profile_type).validate_python(profile),
            None if links is None else LinkCosts(**links),
            spans_nodes=spans_nodes,
            together=None if together is None else LinkCosts(**together),
        )

    def measure(self, group: dist.ProcessGroup | None, rank: int, stations: Sequence[Station], tell: Tell) -> None:
        """Make all ranks use the same measurements; collective. What no rank has measured is measured now: links
        from rank 0 to the lowest rank on another node by the `stations` of all ranks, or within the node where
        there is one, and again once there are two. Raises `GroupError` when a rank is gone."""
        other_end = far_end(stations)
        self._num_together = max(self._num_together, num_together(stations))
        self.agree(tell(self.measurements))
        knows_links = self.known.links is not None and (other_end is None or self.known.spans_nodes)
        lacks_model, lacks_links = self.known.profile is None, group is not None and not knows_links
        if lacks_model and rank == 0:  # No generation has begun, so this rank has the whole model.
            self.measure_model()
        if lacks_links and group is not None:
            self.measure_links(group, rank, other_end, num_together(stations))
        if lacks_model or lacks_links:
            self.agree(tell(self.measurements))

    def measure_model(self) -> P:
        """Measure the model, keep the result, from which speeds are then predicted, and return it. This rank has
        to have the whole model."""
        profile = self._measure()
        self._know(profile, self.known.links, spans_nodes=self.known.spans_nodes)
        return profile

    def measure_links(self, group: dist.ProcessGroup, rank: int, other_end: int | None, together: int = 1) -> None:
        """Measure latency and bandwidth between rank 0 and `other_end`, a rank on another node; None: between two
        ranks of one node. Where rank 0's fragment has several ranks, `together`, also between two of these. The
        ranks at the ends alone keep the results. Collective among the ranks of `group`. Raises `GroupError` when a
        rank is gone."""
        within = None
        # These two are of one fragment, and so of one version: whether they measure needs no other's word.
        if together > 1 and (other_end is None or self.known.together is None):
            within = measure_links(group, rank, 1, self._device)
        between = within if other_end is None and together > 1 else None
        if between is None:
            between = measure_links(group, rank, other_end or 1, self._device)
        spans_nodes = between is not None and other_end is not None
        self._know(self.known.profile, between, spans_nodes=spans_nodes, together=within)

    def note_links(self, links: LinkCosts | None, *, spans_nodes: bool = True) -> None:
        """Use these measurements of the links, between nodes or within one; None means that they are not
        measured."""
        self._know(self.known.profile, links, spans_nodes=links is not None and spans_nodes)

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second), predicted from the measurements; empty before the model is measured. Takes
        seconds for up to 64 ranks if the measurements are new."""
        if self.known.profile is None:
            return ()
        points = curve(self.layouts(min(self._spec.max_nodes, MOST_RANKS // self._spec.ranks_per_node)))
        return tuple(point for point in points if point[0] >= self._spec.min_nodes)

    def gain_together(self) -> float | None:
        """How many times as fast the ranks of a fragment are predicted to be as so many on different nodes; None
        before the model and both kinds of links are measured. May take seconds if the measurements are new."""
        known = self.known
        if known.profile is None or known.links is None or known.together is None or not known.spans_nodes:
            return None
        if self._gain[0] is not known:
            fast, slow = self._rate_by(known.together), self._rate_by(known.links)
            self._gain = known, fast / slow if fast and slow else None
        return self._gain[1]

    def _rate_by(self, links: LinkCosts) -> float | None:
        """Samples per second of a fragment's ranks, were all links such; None where they are too few."""
        known = self.known
        self.known = Measurements(known.profile, links)
        try:
            return self.layout(self._num_together).samples_per_s
        except TaskError:
            return None
        finally:
            self.known = known

    @property
    def global_batch(self) -> int:
        """Number of samples of a step: of the smallest one where the spec has its batches grow."""
        return min([self._spec.global_batch, *(samples for _, samples in self._spec.batch_schedule)])

    def _memory_bytes(self, asked: float | None) -> float:
        # A GPU is one rank's; the ranks of a node share its memory.
        sharers = 1 if self._device.type == "cuda" else self._spec.ranks_per_node
        return asked or device_memory_bytes(self._device) // sharers

    def _precision(self) -> Any:
        halves = self._spec.precision == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=halves)

    def _warn_of_memory(self, layout: L, world_size: int) -> None:
        if layout.fits or self._has_warned or self.known.profile is None:
            return
        self._has_warned = True
        warnings.warn(
            f"on {world_size} ranks a rank needs about {layout.most_bytes:,} bytes for its part of the model and "
            f"has {self.memory_bytes:,.0f}: raise min_nodes, or lower micro_batch",
            TrainingWarning,
            stacklevel=3,
        )


def best_of(layouts: Collection[L], among_equals: Callable[[L], Any]) -> L:
    """The fastest of the layouts that fit, or of several as fast the one for which `among_equals` is smallest.
    Where none fits, the one that needs least memory, or of several that need as much the fastest.

    The order in which layouts were found must not matter: ranks that have searched in different orders have to
    choose alike.
    """
    fitting = [layout for layout in layouts if layout.fits]
    if not fitting:
        return min(layouts, key=lambda one: (one.most_bytes, one.predicted_step_s, among_equals(one)))
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
