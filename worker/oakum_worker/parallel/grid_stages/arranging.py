"""Chooses grid, replicas and stages of a trainer in pipelines of grids: the fastest layout that the spec allows.

A pipeline of grids of one rank is a plain pipeline, a pipeline of one stage is a grid, and one stage on one rank
is a replica of the whole model. So one search chooses among all of them, by predictions from the same
measurements.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import torch
import torch.distributed as dist

from oakum_worker.chain import Chain
from oakum_worker.errors import ScheduleError, TaskError, TrainingWarning
from oakum_worker.parallel.grid_stages.arrangement import StackedArrangement
from oakum_worker.parallel.grid_stages.costs import LayerProducts, on_grid
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.grids.costs import Product
from oakum_worker.parallel.grids.layouts import grids_up_to
from oakum_worker.parallel.grids.measuring import ProductNotes
from oakum_worker.parallel.pipeline.arranging import MOST_RANKS, USUAL_LINKS, Arranger, layers_of
from oakum_worker.parallel.pipeline.costs import LinkCosts, ModelProfile
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, choose
from oakum_worker.parallel.step_engine import Curve
from oakum_worker.parallel.tensor.chains import ChainConversion, convert_chain
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task

_ALONE = Grid("1d", 1)
_IN_NO_ORDER = ("zero-bubble", "zero-bubble-v")
"""Schedules whose backward passes are split: what a grid's ranks wait for cannot be split."""
_EQUAL = 1e-9
"""Largest relative difference of times that count as equal."""


@dataclasses.dataclass(frozen=True, slots=True)
class StackedLayout:
    """A grid, and the layout of a pipeline whose ranks are such grids."""

    grid: Grid
    stages: Layout

    @property
    def num_ranks(self) -> int:
        """Number of ranks that compute; the others are spare."""
        return self.stages.num_ranks * self.grid.num_ranks


class _ChainGrids(GridArranger):
    """Converts a chain, and keeps what its layers hand to each other."""

    def __init__(self, task: Task, spec: TrainerSpec, chain: Chain) -> None:
        self._chain = chain
        self.plans: dict[Grid, ChainConversion] = {}
        super().__init__(task, spec)

    def _converted(self, grid: Grid, batch: Any, size: int) -> Conversion:
        plan = convert_chain(self._chain, self._task.model, grid, batch, size)
        self.plans[grid] = plan
        return plan.conversion

    def products(self) -> tuple[LayerProducts, ...]:
        """The products of each layer, found out by one forward pass with parameters that take no memory."""
        return self.traced(self._count)

    def _count(self, batch: Any, size: int) -> tuple[LayerProducts, ...]:
        made, first = [], 0
        values = self._chain.inputs(batch)
        for number in range(len(self._chain.layers)):
            found: list[tuple[torch.Tensor, torch.Tensor]] = []
            with torch.no_grad(), ProductNotes(lambda *both, found=found: found.append(both)):
                values = self._chain.run(range(number, number + 1), values)
            products = tuple(Product(x.numel() / w.shape[1] / size, w.shape[1], w.shape[0]) for x, w in found)
            made.append(LayerProducts(first, products, found[0][0].itemsize if found else 4))
            first += len(products)
        return tuple(made)


class StackedArranger:
    """Chooses how a trainer in pipelines of grids is arranged on any number of ranks, and predicts its speed."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task names no layers or a parameter is in none of them, and where the spec
        names a grid on which the model cannot be computed."""
        assert spec.parallel.tensor is not None
        self._task, self._spec, self._options = task, spec, spec.parallel.tensor
        chain = layers_of(task)
        _refuse_strays(task, chain)
        self._stages = Arranger(task, spec)
        self._grids = _ChainGrids(task, spec, chain)
        self._products = self._grids.products()
        asked = self._stages.choices
        self.choices: Choices = dataclasses.replace(
            asked,
            memory_bytes=min(asked.memory_bytes, self._grids.memory_bytes),
            schedules=tuple(name for name in asked.schedules if name not in _IN_NO_ORDER),
        )
        """The choices that the spec leaves to the search for a layout."""
        self._found: dict[int, StackedLayout] = {}
        self._curve: tuple[Any, Curve] | None = None
        self._warned = False

    def __call__(self, world_size: int) -> StackedArrangement:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layout = self.layout(world_size)
        self._warn_of_memory(layout, world_size)
        grids = world_size // layout.grid.num_ranks
        return StackedArrangement(world_size, layout.grid, self._stages.arranged(layout.stages, grids))

    def layout(self, world_size: int) -> StackedLayout:
        """The layout of a generation of `world_size` ranks. A grid that the spec names is taken while there are
        ranks for one, else the fastest. Raises `TaskError` if there is none."""
        if world_size not in self._found:
            self._found[world_size] = self._search(world_size)
        return self._found[world_size]

    def plan(self, grid: Grid) -> ChainConversion:
        """How the chain is computed on a grid. Raises `TaskError` where it cannot be."""
        self._grids.conversion(grid)
        return self._grids.plans[grid]

    def conversion(self, grid: Grid) -> Conversion:
        """How the model is computed on a grid. Raises `TaskError` where it cannot be."""
        return self._grids.conversion(grid)

    @property
    def measurements(self) -> dict[str, Any]:
        """This rank's measurements of layers and links as a JSON document."""
        return self._stages.measurements

    def agree(self, told: list[dict[str, Any]]) -> None:
        """Replace this rank's measurements by those of the lowest rank that has any."""
        self._stages.agree(told)
        self._found.clear()

    @property
    def knows_model(self) -> bool:
        """Whether the layers have been measured."""
        return self._stages.knows_model

    @property
    def knows_links(self) -> bool:
        """Whether the links have been measured."""
        return self._stages.knows_links

    def measure_model(self) -> None:
        """Measure the times of the layers. This rank has to have the whole model."""
        self._stages.measure_model()
        self._found.clear()

    def measure_links(self, group: dist.ProcessGroup, rank: int) -> None:
        """Measure latency and bandwidth between two ranks; collective among the ranks of `group`. Raises
        `GroupError` when a rank is gone."""
        self._stages.measure_links(group, rank)

    def note_links(self, links: LinkCosts | None) -> None:
        """Use these measurements of the links; None means that they are not measured."""
        self._stages.note_links(links)
        self._found.clear()

    def layouts(self, most_nodes: int) -> tuple[StackedLayout, ...]:
        """The layout that is predicted to be fastest for each number of nodes from 1 to `most_nodes`."""
        per_node = self._spec.ranks_per_node
        return tuple(self.layout(nodes * per_node) for nodes in range(1, most_nodes + 1))

    def name_of(self, layout: Layout) -> str:
        """The name of the layout's schedule; `none` for replicas of one grid."""
        return self._stages.name_of(layout)

    def predicted_curve(self) -> Curve:
        """(nodes, samples per second), predicted from the measurements; empty before the layers are measured."""
        if not self.knows_model:
            return ()
        known = self._stages.measurements
        if self._curve is None or self._curve[0] != known:
            most_nodes = min(self._spec.max_nodes, MOST_RANKS // self._spec.ranks_per_node)
            self._curve = known, self._predict_curve(most_nodes)
        return self._curve[1]

    def _predict_curve(self, most_nodes: int) -> Curve:
        points: list[tuple[int, float]] = []
        for nodes, layout in enumerate(self.layouts(most_nodes), start=1):
            rate = layout.stages.samples_per_s
            if layout.stages.fits and (not points or rate > (1 + _EQUAL) * points[-1][1]):
                points.append((nodes, rate))
        return tuple(point for point in points if point[0] >= self._spec.min_nodes)

    @property
    def profile(self) -> ModelProfile:
        """The costs of the layers on one rank; assumed ones before they are measured."""
        return self._stages.profile

    def candidates(self, world_size: int) -> list[StackedLayout]:
        """For each grid that may be taken on `world_size` ranks, its fastest layouts of 1, 2, 4, ... stages.
        Raises `TaskError` if there is none."""
        counts = [1 << power for power in range(world_size.bit_length())]
        asked = [dataclasses.replace(self.choices, num_workers=count) for count in counts]
        found = [layout for choices in asked for layout in self._tried(world_size, choices)]
        return list(dict.fromkeys(found))

    def refused(self, world_size: int) -> dict[Grid, str]:
        """Grid -> why the model does not go onto it, of the grids for which `world_size` ranks are enough."""
        return self._grids.refused(world_size)

    def _search(self, world_size: int) -> StackedLayout:
        found = self._tried(world_size, self.choices)
        if not any(layout.stages.fits for layout in found):
            return min(found, key=lambda layout: max(layout.stages.peak_bytes))
        fitting = [layout for layout in found if layout.stages.fits]
        fastest_s = min(layout.stages.predicted_step_s for layout in fitting)
        return min(
            (one for one in fitting if one.stages.predicted_step_s <= (1 + _EQUAL) * fastest_s),
            key=lambda one: (one.grid.num_ranks, one.num_ranks),
        )

    def _tried(self, world_size: int, choices: Choices) -> list[StackedLayout]:
        asked = self._grids.asked
        named = asked is not None and asked.num_ranks <= world_size
        grids = [asked] if asked is not None and named else grids_up_to(world_size)
        found: list[StackedLayout] = []
        for grid in grids:
            if grid is None or not self._is_able(grid):
                continue
            profile, links = self._stages.profile, self._stages.links or USUAL_LINKS
            divided = on_grid(profile, self._products, grid, links, keep_gathered=self._options.keep_gathered)
            try:
                layout = choose(world_size // grid.num_ranks, divided, links, choices)
            except ScheduleError as error:
                raise TaskError(f"the model cannot be spread over {world_size} ranks: {error}") from error
            found.append(StackedLayout(grid, layout))
        return found

    def _is_able(self, grid: Grid) -> bool:
        if grid == _ALONE:
            return True
        try:
            self.conversion(grid)
        except TaskError:
            return False
        return True

    def _warn_of_memory(self, layout: StackedLayout, world_size: int) -> None:
        if layout.stages.fits or self._warned or not self.knows_model:
            return
        self._warned = True
        warnings.warn(
            f"on {world_size} ranks one needs about {max(layout.stages.peak_bytes):,} bytes for its blocks and "
            f"has {self.choices.memory_bytes:,.0f}: raise min_nodes, or lower micro_batch",
            TrainingWarning,
            stacklevel=2,
        )


def _refuse_strays(task: Task, chain: Chain) -> None:
    held = {id(parameter) for layer in chain.layers for parameter in layer.parameters()}
    stray = [name for name, parameter in task.model.named_parameters() if id(parameter) not in held]
    if stray:
        raise TaskError(
            f"{', '.join(stray[:3])} belong to no layer of the task's chain, and parallel.tensor divides every "
            "parameter within its layer: name the modules that hold them in Chain(layers=...)"
        )
