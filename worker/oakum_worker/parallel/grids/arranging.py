"""Chooses a tensor-parallel trainer's grid for a number of ranks: the fastest one that the spec allows."""

from __future__ import annotations

from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.grids.costs import GridProfile, Product
from oakum_worker.parallel.grids.layouts import GridChoices, best_of_each, choose_grid
from oakum_worker.parallel.grids.measuring import measure_products
from oakum_worker.parallel.grids.model_grids import ModelGrids
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.pipeline.layouts import Layout
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


class GridArranger(LayoutArranger[GridProfile, Layout, Arrangement]):
    """Chooses how a tensor-parallel trainer is arranged on any number of ranks."""

    _profile_type = GridProfile

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the spec names a grid of several ranks and the model cannot be computed on
        it."""
        assert spec.parallel.tensor is not None
        self._options = spec.parallel.tensor
        super().__init__(task, spec, self._options.memory_bytes)
        self.grids = ModelGrids(task, self.global_batch, self._options)

    def compare_grids(self, world_size: int) -> tuple[Layout, ...]:
        """The best layout of each grid for which `world_size` ranks are enough and onto which the model goes, the
        fastest that fits first; of all grids, also where the spec names one."""
        choices = self._choices_of(self.grids.usable_grids(world_size), None)
        return best_of_each(world_size, self.profile, self.links, choices)

    def _arrange(self, layout: Layout, world_size: int) -> Arrangement:
        return Arrangement(world_size, layout.num_replicas, grid=layout.grid, micro_batch=layout.micro_batch)

    def _search(self, world_size: int) -> Layout:
        choices = self._choices_of(self.grids.grids_to_try(world_size), self.grids.asked_grid(world_size))
        return choose_grid(world_size, self.profile, self.links, choices)

    def _choices_of(self, able: list[Grid], asked: Grid | None) -> GridChoices:
        return GridChoices(
            global_batch=self.global_batch,
            memory_bytes=self.memory_bytes,
            asked=asked,
            micro_batch=self._spec.micro_batch,
            keep_gathered=self._options.keep_gathered,
            able=frozenset(able),
        )

    def _measure(self) -> GridProfile:
        averages = self._spec.ema is not None
        return measure_products(self._task, self.global_batch, self._precision, averages=averages)

    def _assume(self) -> GridProfile:
        """Products by the sizes of matrices."""
        matrices = [shape for shape in self.grids.shapes if len(shape) == 2]
        products = tuple(Product(1.0, inner, columns) for columns, inner in matrices)
        size = self.grids.parameter_bytes
        return GridProfile(products, ((1.0, 1e-9),), ((1, 1e-6),), 4, size, 2 * size, 0.0)
