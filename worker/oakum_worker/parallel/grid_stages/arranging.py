"""Chooses grid, replicas and stages of a trainer in pipelines of grids: the fastest layout that the spec allows.

A pipeline of grids of one rank is a plain pipeline, a pipeline of one stage is a grid, and one stage on one rank
is a replica of the whole model. So one search chooses among all of them, by predictions from the same
measurements.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError
from oakum_worker.parallel.arranging import EQUAL
from oakum_worker.parallel.grid_stages.arrangement import StackedArrangement
from oakum_worker.parallel.grid_stages.costs import LayerProducts, on_grid
from oakum_worker.parallel.grids.costs import Product
from oakum_worker.parallel.grids.layouts import grids_up_to
from oakum_worker.parallel.grids.measuring import ProductNotes
from oakum_worker.parallel.grids.model_grids import ModelGrids, asked_grid
from oakum_worker.parallel.pipeline.arranging import ChainArranger
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, choose
from oakum_worker.parallel.tensor.chains import ChainConversion, convert_chain
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.schedule_table import SPLITTING
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


@dataclasses.dataclass(frozen=True, slots=True)
class StackedLayout:
    """A grid, and the layout of a pipeline whose ranks are such grids."""

    grid: Grid
    stages: Layout

    @property
    def num_ranks(self) -> int:
        """Number of ranks that compute; the others are spare."""
        return self.stages.num_ranks * self.grid.num_ranks

    @property
    def samples_per_s(self) -> float:
        """Predicted speed of training."""
        return self.stages.samples_per_s

    @property
    def most_bytes(self) -> int:
        """Predicted peak memory of the rank that needs most, in bytes."""
        return self.stages.most_bytes

    @property
    def fits(self) -> bool:
        """Whether every rank has that much memory."""
        return self.stages.fits


class _ChainGrids(ModelGrids):
    """Converts a chain, and keeps what its layers hand to each other."""

    def __init__(self, task: Task, most_samples: int, chain: Chain) -> None:
        super().__init__(task, most_samples)
        self._chain = chain
        self.plans: dict[Grid, ChainConversion] = {}

    def _convert(self, grid: Grid, batch: Any, size: int) -> Conversion:
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


class StackedArranger(ChainArranger[StackedLayout]):
    """Chooses how a trainer in pipelines of grids is arranged on any number of ranks."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task names no layers or a parameter is in none of them, and where the spec
        names a grid on which the model cannot be computed."""
        assert spec.parallel.tensor is not None
        super().__init__(task, spec)
        _refuse_strays(task, self._chain)
        self._tensor = spec.parallel.tensor
        self._grids = _ChainGrids(task, self.global_batch, self._chain)
        self._asked = asked_grid(self._tensor)
        if self._asked is not None and (error := self._grids.error_on(self._asked)) is not None:
            raise error
        self._products = self._grids.products()
        self.choices = dataclasses.replace(
            self.choices,
            memory_bytes=min(self.choices.memory_bytes, self._memory_bytes(self._tensor.memory_bytes)),
            # What a grid's ranks wait for cannot be split.
            schedules=tuple(name for name in self.choices.schedules if name not in SPLITTING),
        )

    def __call__(self, world_size: int) -> StackedArrangement:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layout = self.layout(world_size)
        self._warn_of_memory(layout, world_size)
        grids = world_size // layout.grid.num_ranks
        return StackedArrangement(world_size, layout.grid, self._arranged(layout.stages, grids))

    def plan(self, grid: Grid) -> ChainConversion:
        """How the chain is computed on a grid. Raises `TaskError` where it cannot be."""
        self._grids.conversion(grid)
        return self._grids.plans[grid]

    def conversion(self, grid: Grid) -> Conversion:
        """How the model is computed on a grid. Raises `TaskError` where it cannot be."""
        return self._grids.conversion(grid)

    def refused(self, world_size: int) -> dict[Grid, str]:
        """Grid -> why the model does not go onto it, of the grids for which `world_size` ranks are enough."""
        return self._grids.refused(world_size)

    def candidates(self, world_size: int) -> list[StackedLayout]:
        """For each grid that may be taken on `world_size` ranks, its fastest layouts of 1, 2, 4, ... stages.
        Raises `ScheduleError` if there is none."""
        counts = [1 << power for power in range(world_size.bit_length())]
        asked = [dataclasses.replace(self.choices, num_workers=count) for count in counts]
        found = [layout for choices in asked for layout in self._tried(world_size, choices)]
        return list(dict.fromkeys(found))

    def _search(self, world_size: int) -> StackedLayout:
        """A grid that the spec names is taken while there are ranks for one, else the fastest."""
        found = self._tried(world_size, self.choices)
        if not any(layout.fits for layout in found):
            return min(found, key=lambda layout: layout.most_bytes)
        fitting = [layout for layout in found if layout.fits]
        fastest_s = min(layout.stages.predicted_step_s for layout in fitting)
        return min(
            (one for one in fitting if one.stages.predicted_step_s <= (1 + EQUAL) * fastest_s),
            key=lambda one: (one.grid.num_ranks, one.num_ranks),
        )

    def _tried(self, world_size: int, choices: Choices) -> list[StackedLayout]:
        is_asked = self._asked is not None and self._asked.num_ranks <= world_size
        grids = [self._asked] if self._asked is not None and is_asked else grids_up_to(world_size)
        found: list[StackedLayout] = []
        for grid in grids:
            if self._grids.error_on(grid) is None:
                keep = self._tensor.keep_gathered
                divided = on_grid(self.profile, self._products, grid, self.links, keep_gathered=keep)
                layout = choose(world_size // grid.num_ranks, divided, self.links, choices)
                found.append(StackedLayout(grid, layout))
        return found


def _refuse_strays(task: Task, chain: Chain) -> None:
    held = {id(parameter) for layer in chain.layers for parameter in layer.parameters()}
    stray = [name for name, parameter in task.model.named_parameters() if id(parameter) not in held]
    if stray:
        raise TaskError(
            f"{', '.join(stray[:3])} belong to no layer of the task's chain, and parallel.tensor divides every "
            "parameter within its layer: name the modules that hold them in Chain(layers=...)"
        )
