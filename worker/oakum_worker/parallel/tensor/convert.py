"""Plans a model's conversion by following one small batch through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.parallel.tensor.computing import BlockMode, Share
from oakum_worker.parallel.tensor.conversion import NOT_USED, Conversion, DividedParameter
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.tensor.placements import Placement, Splits
from oakum_worker.parallel.tensor.spread import Spread, Work, of_batch
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.torch_internals import tree_map


def convert(model: nn.Module, grid: Grid, forward: Callable[[Share], Any], num_samples: int) -> Conversion:
    """Find out how `model` is computed on a grid, by one forward pass of `num_samples` samples in this process.
    Returns the plan, which says which rank has which block of which parameter.

    `forward(share)` computes a loss of the model, which must still be whole, for a batch that it puts through
    `share`: `lambda share: task.loss(task.model, share(batch))`. Nothing of the model changes, but buffers as
    its forward pass changes them. A parameter that the pass does not use is kept whole on every rank.

    Raises `TaskError` where the model does what cannot be computed on a grid, with the module's name.
    """
    planner = _Planner(model)
    work = Work(Wires.alone(grid), planner, num_samples)
    with torch.no_grad(), planner.listening(), _PlanningMode(work, planner):
        loss = forward(lambda batch: tree_map(lambda value: of_batch(work, value), batch))
    for value in loss if isinstance(loss, tuple) else (loss,):
        if isinstance(value, Spread) and value.axes:
            raise TaskError(
                f"the loss has shape {tuple(value.shape)} on a grid: return the mean over the batch's samples, or "
                "a total and its weight"
            )
    return planner.conversion(grid)


class _Planner:
    """The `Placing` of a model that is being converted: it places each parameter when a function first uses it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._placed: dict[int, Placement] = {}
        self._modules: list[str] = []

    def knows(self, value: Any) -> bool:
        """Whether `value` is a parameter of the model."""
        return id(value) in self._names

    def placement_of(self, parameter: nn.Parameter) -> Placement | None:
        """The placement that the parameter has got so far; None if no function has used it."""
        return self._placed.get(id(parameter))

    def place(self, parameter: nn.Parameter, splits: Splits, role: str) -> Placement:
        """Set the parameter's placement, in place of an earlier one: its dimensions are cut by `splits`. `role`
        says what the parameter is. Returns the placement."""
        self._placed[id(parameter)] = placement = Placement(tuple(parameter.shape), splits, role)
        return placement

    def fold(self, parameters: Sequence[nn.Parameter], fold: int) -> bool:
        """Cut the first dimension of these parameters within each of `fold` sections. Returns False, and changes
        nothing, where one of them is not cut there or cannot be divided so."""
        placements = [self._placed[id(parameter)] for parameter in parameters]
        if any(placement.splits[0] is None or placement.shape[0] % fold for placement in placements):
            return False
        for parameter, placement in zip(parameters, placements, strict=True):
            self._placed[id(parameter)] = placement.folded(fold)
        return True

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Context in which the model runs: a `TaskError` is raised anew with the name of the module in which it
        occurred."""
        hooks = []
        for name, module in self._model.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(f"{name} ({type(module).__name__})")))
            hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        except TaskError as error:
            if self._modules:
                raise TaskError(f"{self._modules[-1].strip()}: {error}") from error
            raise
        finally:
            for hook in hooks:
                hook.remove()

    def conversion(self, grid: Grid) -> Conversion:
        """The conversion for `grid`; parameters that no function has used are whole on every rank."""
        placements = {}
        for name, parameter in self._model.named_parameters():
            placement = self._placed.get(id(parameter)) or Placement.replicated(tuple(parameter.shape))
            placements[name] = placement
        return Conversion(grid, placements, (*self._used(), *self._unused()))

    def _used(self) -> Iterator[DividedParameter]:
        for identity, placement in self._placed.items():
            name = self._names.get(identity, "a parameter of another model")
            first = placement.splits[0] if placement.splits else None
            yield DividedParameter(name, placement.role, placement.axes, 1 if first is None else first.fold)

    def _unused(self) -> Iterator[DividedParameter]:
        for identity, name in self._names.items():
            if identity not in self._placed:
                yield DividedParameter(name, NOT_USED, ())

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._modules.append(name)

        return enter

    def _leave(self, *_: Any) -> None:
        self._modules.pop()


class _PlanningMode(BlockMode):
    """Function mode in which a conversion is planned: functions called with a spread tensor or a parameter of the
    model compute by the rules of `operations`, which place the parameters."""

    def __init__(self, work: Work, planner: _Planner) -> None:
        super().__init__(work)
        self._planner = planner

    def _is_block(self, value: torch.Tensor) -> bool:
        return self._planner.knows(value)
