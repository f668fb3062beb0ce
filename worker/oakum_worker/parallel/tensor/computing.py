"""Within `computing`, a model whose parameters are blocks computes with spread tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from oakum_worker.function_mode import call
from oakum_worker.parallel.tensor import operations as operations
from oakum_worker.parallel.tensor.conversion import PLACEMENT
from oakum_worker.parallel.tensor.placements import Placement, Splits
from oakum_worker.parallel.tensor.spread import Spread, Work, answer, answer_in, leaves, of_batch
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.torch_internals import tree_map

Share = Callable[[Any], Any]
"""Marks the tensors of a micro-batch, whose first dimension is that of the samples."""


class Placed:
    """The `Placing` of a model that has been converted: its parameters have placements, which do not change any
    more."""

    def placement_of(self, parameter: nn.Parameter) -> Placement | None:
        """The placement that a converted parameter carries; None for any other parameter."""
        return getattr(parameter, PLACEMENT, None)

    def place(self, parameter: nn.Parameter, splits: Splits, role: str) -> Placement:
        """The placement of a parameter that belongs to no converted model: every rank has all of it."""
        return Placement.replicated(tuple(parameter.shape))

    def fold(self, parameters: Sequence[nn.Parameter], fold: int) -> bool:
        """Always False: it is too late to cut parameters otherwise."""
        return False


@contextmanager
def computing(wires: Wires, num_samples: int, *, keep_gathered: bool = False) -> Iterator[Share]:
    """Context in which a model computes a micro-batch of `num_samples` samples with the blocks of its
    parameters; collective among the grid's ranks.

    Yields a function that takes the whole micro-batch, in nested containers or not, and returns the values with
    which the task's `inputs` and `loss` have to be called. With `keep_gathered`, linear layers keep gathered
    inputs and weights until the backward pass; otherwise they gather them again there.
    """
    work = Work(wires, Placed(), num_samples, keep_gathered)
    with BlockMode(work):
        yield lambda batch: tree_map(lambda value: of_batch(work, value), batch)


class BlockMode(TorchFunctionMode):
    """Function mode in which torch's functions, when called with a spread tensor or a block of a parameter,
    compute by the rules of `operations`."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [value for value in leaves(args, kwargs) if isinstance(value, torch.Tensor)]
        if any(isinstance(value, Spread) for value in given):
            # Here, before a mode that draws for samples answers for the whole tensor.
            return answer(func, args, kwargs)
        if not any(map(self._is_block, given)):
            return call(self, func, args, kwargs)
        return answer_in(self._work, func, args, kwargs)

    def _is_block(self, value: torch.Tensor) -> bool:
        if not isinstance(value, nn.Parameter):
            return False
        placement = self._work.placing.placement_of(value)
        return placement is not None and bool(placement.axes)
