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
from oakum_worker.parallel.arranging import best_of
from oakum_worker.parallel.grid_stages.costs import LayerProducts, on_grid
from oakum_worker.parallel.grids.costs import Product
from oakum_worker.parallel.grids.measuring import ProductNotes
from oakum_worker.parallel.grids.model_grids import ModelGrids
from oakum_worker.parallel.pipeline.arranging import Arranger
from oakum_worker.parallel.pipeline.layouts import Choices, Layout, choose
from oakum_worker.parallel.tensor.chains import ChainConversion, convert_chain
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.schedule_table import SPLITTING
from oakum_worker.spec import TrainerSpec
from oakum_worker.spec_options import TensorSpec
from oakum_worker.task import Task


class ChainGrids(ModelGrids):
    """Converts a chain, and keeps what its layers hand to each other."""

    def __init__(self, task: Task, most_samples: int, options: TensorSpec, chain: Chain) -> None:
        self._chain = chain
        self._plans: dict[Grid, ChainConversion] = {}
        super().__init__(task, most_samples, options)

    def plan(self, grid: Grid) -> ChainConversion:
        """How the chain is computed on a grid. Raises `TaskError` where it cannot be."""
        self.conversion(grid)
        return self._plans[grid]

    def _convert(self, grid: Grid, batch: Any, size: int) -> Conversion:
        plan = convert_chain(self._chain, self._task.model, grid, batch, size)
        self._plans[grid] = plan
        return plan.conversion

    def products(self) -> tuple[LayerProducts, ...]:
        """The products of each layer, found out by one forward pass with parameters that take no memory."""
        return self.trace(self._count)

    def _count(self, batch: Any, size: int) -> tuple[LayerProducts, ...]:
        layers, first = [], 0
        values = self._chain.inputs(batch)
        for number in range(len(self._chain.layers)):
            factors: list[tuple[torch.Tensor, torch.Tensor]] = []
            with torch.no_grad(), ProductNotes(lambda *both, factors=factors: factors.append(both)):
                values = self._chain.run(range(number, number + 1), values)
            products = tuple(Product(x.numel() / w.shape[1] / size, w.shape[1], w.shape[0]) for x, w in factors)
            layers.append(LayerProducts(first, products, factors[0][0].itemsize if factors else 4))
            first += len(products)
        return tuple(layers)


class StackedArranger(Arranger):
    """Chooses how a trainer in pipelines of grids is arranged on any number of ranks."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the task names no layers or a parameter is in none of them, and where the spec
        names a grid on which the model cannot be computed."""
        assert spec.parallel.tensor is not None
        super().__init__(task, spec)
        _refuse_strays(task, self._chain)
        tensor = spec.parallel.tensor
        self._keeps_gathered = tensor.keep_gathered
        self.grids = ChainGrids(task, self.global_batch, tensor, self._chain)
        self._products = self.grids.products()
        self.memory_bytes = min(self.memory_bytes, self._memory_bytes(tensor.memory_bytes))
        self.choices = dataclasses.replace(
            self.choices,
            memory_bytes=self.memory_bytes,
            # What a grid's ranks wait for cannot be split.
            schedules=tuple(name for name in self.choices.schedules if name not in SPLITTING),
        )

    def candidates(self, world_size: int) -> list[Layout]:
        """For each grid that may be taken on `world_size` ranks, its fastest layouts of 1, 2, 4, ... stages.
        Raises `ScheduleError` if there is none."""
        counts = [1 << power for power in range(world_size.bit_length())]
        asked = [dataclasses.replace(self.choices, num_workers=count) for count in counts]
        layouts = [layout for choices in asked for layout in self._best_of_grids(world_size, choices)]
        return list(dict.fromkeys(layouts))

    def _search(self, world_size: int) -> Layout:
        layouts = self._best_of_grids(world_size, self.choices)
        return best_of(layouts, lambda layout: (layout.grid.num_ranks, layout.num_ranks))

    def _best_of_grids(self, world_size: int, choices: Choices) -> list[Layout]:
        layouts: list[Layout] = []
        for grid in self.grids.grids_to_try(world_size):
            keep = self._keeps_gathered
            divided = on_grid(self.profile, self._products, grid, self.links, keep_gathered=keep)
            layout = choose(world_size // grid.num_ranks, divided, self.links, choices)
            layouts.append(dataclasses.replace(layout, grid=grid))
        return layouts


def _refuse_strays(task: Task, chain: Chain) -> None:
    held = {id(parameter) for layer in chain.layers for parameter in layer.parameters()}
    stray = [name for name, parameter in task.model.named_parameters() if id(parameter) not in held]
    if stray:
        raise TaskError(
            f"{', '.join(stray[:3])} belong to no layer of the task's chain, and parallel.tensor divides every "
            "parameter within its layer: name the modules that hold them in Chain(layers=...)"
        )
