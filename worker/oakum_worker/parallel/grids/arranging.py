"""Chooses a tensor-parallel trainer's grid for a number of ranks: the fastest one that the spec allows."""

from __future__ import annotations

from typing import Any

from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.grids.costs import GridProfile, Product
from oakum_worker.parallel.grids.layouts import GridChoices, GridLayout, best_of_each, choose_grid
from oakum_worker.parallel.grids.measuring import measure_products
from oakum_worker.parallel.grids.model_grids import ModelGrids
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.spec import TrainerSpec
from oakum_worker.task import Task


class GridArranger(LayoutArranger[GridProfile, GridLayout]):
    """Chooses how a tensor-parallel trainer is arranged on any number of ranks."""

    def __init__(self, task: Task, spec: TrainerSpec) -> None:
        """Raises `TaskError` where the spec names a grid of several ranks and the model cannot be computed on
        it."""
        assert spec.parallel.tensor is not None
        super().__init__(task, spec)
        self._options = spec.parallel.tensor
        self.grids = ModelGrids(task, self.global_batch, self._options)

    def __call__(self, world_size: int) -> Arrangement:
        """The arrangement of a generation of `world_size` ranks. Raises `TaskError` if there is none."""
        layout = self.layout(world_size)
        self._warn_of_memory(layout, world_size)
        return Arrangement(world_size, layout.num_replicas, grid=layout.grid, micro_batch=layout.micro_batch)

    def compared(self, world_size: int) -> tuple[GridLayout, ...]:
        """The best layout of each grid for which `world_size` ranks are enough and onto which the model goes, the
        fastest that fits first; of all grids, also where the spec names one."""
        return best_of_each(
            world_size, self._profile, self.links, self._choices_of(self.grids.able(world_size), None)
        )

    @property
    def memory_bytes(self) -> float:
        """Bytes that one rank may use."""
        return self._memory_bytes(self._options.memory_bytes)

    def _search(self, world_size: int) -> GridLayout:
        choices = self._choices_of(self.grids.to_try(world_size), self.grids.asked(world_size))
        return choose_grid(world_size, self._profile, self.links, choices)

    def _choices_of(self, able: list[Grid], asked: Grid | None) -> GridChoices:
        return GridChoices(
            global_batch=self.global_batch,
            memory_bytes=self.memory_bytes,
            asked=asked,
            micro_batch=self._spec.micro_batch,
            keep_gathered=self._options.keep_gathered,
            able=frozenset(able),
        )

    @property
    def _profile(self) -> GridProfile:
        return self._known.profile or self._nominal()

    def _nominal(self) -> GridProfile:
        """An assumed profile for use before anything is measured: products by the sizes of matrices."""
        matrices = [shape for shape in self.grids.shapes if len(shape) == 2]
        products = tuple(Product(1.0, inner, columns) for columns, inner in matrices)
        size = self.grids.parameter_bytes
        return GridProfile(products, ((1.0, 1e-9),), ((1, 1e-6),), 4, size, 2 * size, 0.0)

    def _measured(self) -> GridProfile:
        averages = self._spec.ema is not None
        return measure_products(self._task, self.global_batch, self._precision, averages=averages)

    @staticmethod
    def _profile_of(document: dict[str, Any]) -> GridProfile:
        made: dict[str, Any] = {
            name: tuple(tuple(point) for point in value) if name in ("speed", "others_s") else value
            for name, value in document.items()
        }
        made["products"] = tuple(Product(**one) for one in document["products"])
        return GridProfile(**made)
