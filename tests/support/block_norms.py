"""The norm of a gradient of which each rank of a grid has blocks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from oakum_worker.parallel.tensor.conversion import PLACEMENT
from oakum_worker.parallel.tensor.grids import ALL_AXES
from oakum_worker.parallel.tensor.placements import Placement
from oakum_worker.parallel.tensor.wires import Wires


def gradient_norm(parameters: Iterable[nn.Parameter], wires: Wires) -> torch.Tensor:
    """The norm of the whole gradient, shape (), float64, of which the grid's ranks have blocks; a block that
    several ranks have counts once. Collective among the grid's ranks; equal on all."""
    assert wires.rank is not None
    place = wires.grid.coordinates(wires.rank)
    total = torch.zeros((), dtype=torch.float64)
    for parameter in parameters:
        placement = getattr(parameter, PLACEMENT, None) or Placement.replicated(tuple(parameter.shape))
        cut_along = placement.axes
        is_first_copy = not any(place[axis] for axis in ALL_AXES if axis not in cut_along)
        if parameter.grad is not None and is_first_copy:
            norm = torch.linalg.vector_norm(
                parameter.grad, dtype=torch.promote_types(parameter.dtype, torch.float32)
            )
            total = total + norm.double().square()
    return wires.reduce(total, ALL_AXES).sqrt()
