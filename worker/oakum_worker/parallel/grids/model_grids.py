"""Finds out how a model is computed on grids, and on which it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from oakum_worker.errors import TaskError
from oakum_worker.parallel.grids.layouts import grids_up_to
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.whole_parameters import kinds_of, replaced_parameters
from oakum_worker.spec_options import TensorSpec
from oakum_worker.state.boundary import BoundarySnapshot
from oakum_worker.task import Task

_T = TypeVar("_T")
_TRACED_SAMPLES = 4


class ModelGrids:
    """How a task's model is computed on grids; found out once for each grid."""

    def __init__(self, task: Task, most_samples: int, options: TensorSpec) -> None:
        """The task has its whole model now. It is traced with a few samples, at most `most_samples`. Raises
        `TaskError` where the spec's `options` name a grid on which the model cannot be computed."""
        self._task, self._loss = task, task.loss
        self._kinds = kinds_of(task.model)
        self._device = next(task.model.parameters()).device
        self._num_samples = min(_TRACED_SAMPLES, most_samples)
        self._conversions: dict[Grid, Conversion | TaskError] = {}
        self._asked = _asked_grid(options)
        if self._asked is not None and (error := self.error_on(self._asked)) is not None:
            raise error

    @property
    def shapes(self) -> list[torch.Size]:
        """The shapes of the whole model's parameters."""
        return [kind.shape for kind in self._kinds.values()]

    @property
    def parameter_bytes(self) -> int:
        """Size of the whole model's parameters."""
        return sum(kind.shape.numel() * kind.dtype.itemsize for kind in self._kinds.values())

    def conversion(self, grid: Grid) -> Conversion:
        """How the model is computed on a grid. Raises `TaskError` where it cannot be."""
        if grid not in self._conversions:
            try:
                self._conversions[grid] = self.trace(lambda batch, size: self._convert(grid, batch, size))
            except TaskError as error:
                self._conversions[grid] = error
        result = self._conversions[grid]
        if isinstance(result, TaskError):
            raise result
        return result

    def error_on(self, grid: Grid) -> TaskError | None:
        """Why the model cannot be computed on a grid; None where it can, as on one rank."""
        try:
            if grid.num_ranks > 1:
                self.conversion(grid)
        except TaskError as error:
            return error
        return None

    def asked_grid(self, world_size: int) -> Grid | None:
        """The grid that the spec names, while `world_size` ranks are enough for one; None: Oakum chooses."""
        return self._asked if self._asked is not None and self._asked.num_ranks <= world_size else None

    def grids_to_try(self, world_size: int) -> list[Grid]:
        """The grids for which `world_size` ranks are enough and onto which the model goes: the one that the spec
        names while there are ranks for it, else all."""
        asked = self.asked_grid(world_size)
        return self.usable_grids(world_size) if asked is None else [asked]

    def usable_grids(self, world_size: int) -> list[Grid]:
        """The grids for which `world_size` ranks are enough and onto which the model goes."""
        return [grid for grid in grids_up_to(world_size) if self.error_on(grid) is None]

    def refusals(self, world_size: int) -> dict[Grid, str]:
        """Grid -> why the model does not go onto it, of the grids for which `world_size` ranks are enough."""
        errors = {grid: self.error_on(grid) for grid in grids_up_to(world_size)}
        return {grid: str(error) for grid, error in errors.items() if error is not None}

    def trace(self, follow: Callable[[Any, int], _T]) -> _T:
        """What `follow(batch, num_samples)` finds with a small batch, while the model has parameters that take no
        memory, since only their shapes count here. Nothing of the task changes."""
        noted = BoundarySnapshot(self._task)
        noted.take()
        size = self._num_samples
        shapes = {name: kind.without_memory(self._device) for name, kind in self._kinds.items()}
        try:
            with torch.random.fork_rng(devices=[]), replaced_parameters(self._task.model, shapes):
                return follow(self._task.read([0] * size), size)
        finally:
            noted.restore()

    def _convert(self, grid: Grid, batch: Any, size: int) -> Conversion:
        """Convert the model by a batch of `size` samples."""

        def forward(share: Callable[[Any], Any]) -> Any:
            return self._loss(self._task.model, share(batch))

        return convert(self._task.model, grid, forward, size)


def _asked_grid(options: TensorSpec) -> Grid | None:
    """The grid that the spec's options name; None where they leave the choice to Oakum."""
    if options.cube is not None:
        return Grid("3d", options.cube)
    if options.square is not None:
        return Grid("2d", options.square)
    if options.shards is not None:
        return Grid("shards", options.shards)
    return Grid("1d", options.line) if options.line is not None else None
