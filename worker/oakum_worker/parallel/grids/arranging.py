"""Chooses a tensor-parallel trainer's grid for a number of ranks: the fastest one that the spec allows.

The choice follows from the spec, the model, and the measurements of products and links. All ranks use one rank's
measurements, so all choose the same arrangement.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from oakum_worker.devices import device_memory_bytes
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.parallel.grids.arrangement import GridArrangement
from oakum_worker.parallel.grids.costs import GridProfile, Product
from oakum_worker.parallel.grids.layouts import (
    GridChoices,
    GridLayout,
    best_of_each,
    choose_grid,
    grid_curve,
    grids_up_to,
)
from oakum_worker.parallel.grids.measuring import measure_products
from oakum_worker.parallel.pipeline.arranging import MOST_RANKS, USUAL_LINKS
from oakum_worker.parallel.pipeline.costs import LinkCosts
from oakum_worker.parallel.pipeline.measuring import measure_links
from oakum_worker.parallel.step_engine import Curve
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.whole_parameters import kinds_of, replaced_parameters
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import TensorSpec
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.task import Task

_T = TypeVar("_T")
_TRACED_SAMPLES = 4


class GridArranger:
    """Chooses how a tensor-parallel trainer is arranged on any number of ranks, from the spec and from
    measurements, and predicts the trainer's speed."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the spec names a grid of several ranks and the model cannot be computed on
        it."""
        assert spec.parallel.tensor is not None
        self._task, self._spec, self._options = task, spec, spec.parallel.tensor
        self.kinds = kinds_of(task.model)
        """The whole model's parameters."""
        self._device = next(task.model.parameters()).device
        self._loss = task.loss
        self._conversions: dict[Grid, Conversion | TaskError] = {}
        self._profile: GridProfile | None = None
        self._links: LinkCosts | None = None
        self._arranged: dict[int, GridLayout] = {}
        self._curve: tuple[tuple[GridProfile, LinkCosts | None], Curve] | None = None
        self._warned = False
        self.asked = asked_grid(self._options)
        """The grid that the spec names; None where it leaves the choice."""
        if self.asked is not None and self.asked.num_ranks > 1:
            self.conversion(self.asked)

    def __call__(self, world_size: int) -> GridArrangement:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layout = self.layout(world_size)
        self._warn_of_memory(layout, world_size)
        return GridArrangement(world_size, layout.num_replicas, layout.grid, layout.micro_batch)

    def layout(self, world_size: int) -> GridLayout:
        """The layout of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        if world_size not in self._arranged:
            profile = self._profile or self._nominal()
            try:
                chosen = choose_grid(world_size, profile, self._links or USUAL_LINKS, self._choices(world_size))
            except ScheduleError as error:
                raise TaskError(f"the model cannot be divided over {world_size} ranks: {error}") from error
            self._arranged[world_size] = chosen
        return self._arranged[world_size]

    def conversion(self, grid: Grid) -> Conversion:
        """How the model is computed on a grid; found out once for each grid. Raises `TaskError` where it cannot
        be."""
        if grid not in self._conversions:
            try:
                self._conversions[grid] = self._convert(grid)
            except TaskError as error:
                self._conversions[grid] = error
        found = self._conversions[grid]
        if isinstance(found, TaskError):
            raise found
        return found

    @property
    def measurements(self) -> dict[str, Any]:
        """This rank's measurements of products and links as a JSON document, to be sent to the other ranks; null
        for what it has not measured."""
        return {
            "profile": None if self._profile is None else dataclasses.asdict(self._profile),
            "links": None if self._links is None else dataclasses.asdict(self._links),
        }

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Replace this rank's measurements by those of the lowest rank that has any. `told` has every rank's
        `measurements`, by rank; products and links are looked for separately."""
        profile = next((known["profile"] for known in told if known["profile"] is not None), None)
        links = next((known["links"] for known in told if known["links"] is not None), None)
        self._profile = None if profile is None else _profile(profile)
        self._links = None if links is None else LinkCosts(**links)
        self._arranged.clear()

    @property
    def knows_model(self) -> bool:
        """Whether the products have been measured."""
        return self._profile is not None

    @property
    def knows_links(self) -> bool:
        """Whether the links have been measured."""
        return self._links is not None

    def measure_model(self) -> GridProfile:
        """Time the model's products. This rank has to have the whole model. Keeps the measurements, from which
        speeds are then predicted, and returns them."""
        averages = self._spec.ema is not None
        self._profile = measure_products(self._task, self.global_batch, self._precision, averages=averages)
        self._arranged.clear()
        return self._profile

    def measure_links(self, group: dist.ProcessGroup, rank: int) -> None:
        """Measure latency and bandwidth between two ranks; collective among the ranks of `group`. Raises
        `GroupError` when a rank is gone."""
        self._links = measure_links(group, rank, self._spec.ranks_per_node, self._device)

    def note_links(self, links: LinkCosts | None) -> None:
        """Use these measurements of the links; None means that they are not measured."""
        self._links = links
        self._arranged.clear()

    def layouts(self, most_nodes: int) -> tuple[GridLayout, ...]:
        """The layout that is predicted to be fastest for each number of nodes from 1 to `most_nodes`. Raises
        `TaskError` where one has none."""
        per_node = self._spec.ranks_per_node
        return tuple(self.layout(nodes * per_node) for nodes in range(1, most_nodes + 1))

    def compared(self, world_size: int) -> tuple[GridLayout, ...]:
        """The best layout of each grid for which `world_size` ranks are enough and onto which the model goes, the
        fastest that fits first; of all grids, also where the spec names one."""
        choices = dataclasses.replace(self._choices_of(grids_up_to(world_size)), asked=None)
        return best_of_each(world_size, self._profile or self._nominal(), self._links or USUAL_LINKS, choices)

    def refused(self, world_size: int) -> dict[Grid, str]:
        """Grid -> why the model does not go onto it, of the grids for which `world_size` ranks are enough."""
        return {
            grid: str(error)
            for grid in grids_up_to(world_size)
            if grid.num_ranks > 1 and (error := self._error_on(grid)) is not None
        }

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second), predicted from the measurements; empty before products are measured."""
        if self._profile is None:
            return ()
        known = self._profile, self._links
        if self._curve is None or self._curve[0] != known:
            most_nodes = min(self._spec.max_nodes, MOST_RANKS // self._spec.ranks_per_node)
            points = grid_curve(self.layouts(most_nodes)) if most_nodes else ()
            self._curve = known, tuple(point for point in points if point[0] >= self._spec.min_nodes)
        return self._curve[1]

    @property
    def memory_bytes(self) -> float:
        """Bytes that one rank may use."""
        return self._options.memory_bytes or device_memory_bytes(self._device) // self._spec.ranks_per_node

    def _choices(self, world_size: int) -> GridChoices:
        asked = self.asked if self.asked is not None and self.asked.num_ranks <= world_size else None
        return self._choices_of(grids_up_to(world_size) if asked is None else [asked])

    def _choices_of(self, grids: list[Grid]) -> GridChoices:
        return GridChoices(
            global_batch=self.global_batch,
            memory_bytes=self.memory_bytes,
            asked=self.asked if self.asked in grids else None,
            micro_batch=self._spec.micro_batch,
            keep_gathered=self._options.keep_gathered,
            able=frozenset(grid for grid in grids if grid.num_ranks == 1 or self._error_on(grid) is None),
        )

    @property
    def global_batch(self) -> int:
        """Samples of the smallest global batch."""
        return min([self._spec.global_batch, *(samples for _, samples in self._spec.batch_schedule)])

    def _error_on(self, grid: Grid) -> TaskError | None:
        """Why the model cannot be computed on the grid; None where it can."""
        try:
            self.conversion(grid)
        except TaskError as error:
            return error
        return None

    def traced(self, trace: Callable[[Any, int], _T]) -> _T:
        """What `trace(batch, num_samples)` finds with a small batch, while the model has parameters that take no
        memory, since only their shapes count here. Nothing of the task changes."""
        task, noted = self._task, BoundarySnapshot(self._task)
        noted.take()
        size = min(_TRACED_SAMPLES, self.global_batch)
        shapes = {name: kind.without_memory(self._device) for name, kind in self.kinds.items()}
        try:
            with torch.random.fork_rng(devices=[]), replaced_parameters(task.model, shapes):
                return trace(task.read([0] * size), size)
        finally:
            noted.restore()

    def _convert(self, grid: Grid) -> Conversion:
        return self.traced(lambda batch, size: self._converted(grid, batch, size))

    def _converted(self, grid: Grid, batch: Any, size: int) -> Conversion:
        """Convert the model by a batch of `size` samples."""

        def forward(share: Callable[[Any], Any]) -> Any:
            return self._loss(self._task.model, share(batch))

        return convert(self._task.model, grid, forward, size)

    def _nominal(self) -> GridProfile:
        """An assumed profile for use before anything is measured: products by the sizes of matrices."""
        matrices = [kind.shape for kind in self.kinds.values() if len(kind.shape) == 2]
        products = tuple(Product(1.0, inner, columns) for columns, inner in matrices)
        size = sum(kind.shape.numel() * kind.dtype.itemsize for kind in self.kinds.values())
        return GridProfile(products, ((1.0, 1e-9),), ((1, 1e-6),), 4, size, 2 * size, 0.0)

    def _precision(self) -> Any:
        halves = self._spec.precision == "bfloat16"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=halves)

    def _warn_of_memory(self, layout: GridLayout, world_size: int) -> None:
        if layout.fits or self._warned or self._profile is None:
            return
        self._warned = True
        warnings.warn(
            f"on {world_size} ranks a rank needs about {layout.peak_bytes:,} bytes for its blocks and has "
            f"{self.memory_bytes:,.0f}: raise min_nodes, or lower micro_batch",
            TrainingWarning,
            stacklevel=2,
        )


def asked_grid(options: TensorSpec) -> Grid | None:
    """The grid that the spec's options name; None where they leave the choice to Oakum."""
    if options.cube is not None:
        return Grid("3d", options.cube)
    if options.square is not None:
        return Grid("2d", options.square)
    if options.shards is not None:
        return Grid("shards", options.shards)
    return Grid("1d", options.line) if options.line is not None else None


def _profile(document: dict[str, Any]) -> GridProfile:
    made: dict[str, Any] = {
        name: tuple(tuple(point) for point in value) if name in ("speed", "others_s") else value
        for name, value in document.items()
    }
    made["products"] = tuple(Product(**one) for one in document["products"])
    return GridProfile(**made)
