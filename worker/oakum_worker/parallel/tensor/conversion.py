"""The plan for computing one model on a grid of ranks: which rank has which block of which parameter.

`oakum_worker.parallel.tensor.convert.convert(model, grid, forward)` makes it. It calls `forward()` once, which
has to compute a loss of the model for a small batch, and follows the data: whatever torch function a parameter
first takes part in says what the parameter is. So the order of layers is that of execution, and code of the
user's own, between layers or instead of them, is converted like torch's layers, or refused by name with a
`TaskError`.

A rank then computes with its blocks in the user's own modules:

    wires = Wires.form(conversion.grid, members, rank, subgroups, "name")   # members: the grid's ranks, in order
    conversion.install(model, members.index(rank))
    with computing(wires, num_samples) as share:
        loss = task.loss(model, share(batch))
    loss.backward()

Every rank of the grid gives the whole micro-batch, gets the whole loss as a plain tensor, and finds the complete
gradient of its blocks in `p.grad`, whichever ranks have copies of them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.tensor.grids import Axes, Grid
from oakum_worker.parallel.tensor.placements import Placement

NOT_USED = "not used"
"""The role of a parameter that the model's pass does not use."""
PLACEMENT = "oakum_placement"
"""The attribute of a parameter that holds its `Placement` while the parameter is a block."""


@dataclass(frozen=True, slots=True)
class DividedParameter:
    """What one parameter is for the converter, and how it is divided; for people."""

    name: str
    role: str
    """Such as `linear weight, A` or `bias`, or `NOT_USED`."""
    axes: Axes
    """The axes of the grid that divide it; empty where every rank has it whole."""
    sections: int = 1
    """Sections of its first dimension, each of which is divided by itself."""


@dataclass(frozen=True)
class Conversion:
    """The plan for computing one model on one grid: which rank has which block of which parameter. All ranks
    make equal plans without communication."""

    grid: Grid
    placements: Mapping[str, Placement]
    """By the parameters' names in `model.named_parameters()`: a tied parameter has its first name alone."""
    converted: tuple[DividedParameter, ...]
    """One for each parameter, in the order of execution; those that are not used come last."""

    def block(self, name: str, rank: int) -> Block:
        """The elements of the parameter `name` that `rank` of the grid has."""
        return self.placements[name].block(self.grid, rank)

    def install(self, model: nn.Module, rank: int, device: torch.device | None = None) -> None:
        """Replace the parameters of `model`, in the model itself, by the blocks of `rank`, uninitialised.

        Tied parameters stay tied, and names and `requires_grad` stay. What else refers to the parameters, an
        optimizer for instance, still has the old ones. Blocks are on `device`, by default on their parameter's.
        """
        replacements: dict[int, nn.Parameter] = {}
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        for module in model.modules():
            for key, old in module.named_parameters(recurse=False, remove_duplicate=False):
                if id(old) not in replacements:
                    replacements[id(old)] = self.empty(names[id(old)], old, rank, device)
                setattr(module, key, replacements[id(old)])

    def local(self, model: nn.Module, rank: int, whole: Mapping[str, torch.Tensor] | None = None) -> nn.Module:
        """A copy of `model` that has the blocks of `rank` as parameters; filled from `whole`, if it is given.

        `whole` has whole parameters by name, such as a state dict of the model.
        """
        divided = copy.deepcopy(model)
        self.install(divided, rank)
        if whole is not None:
            with torch.no_grad():
                for name, parameter in divided.named_parameters():
                    parameter.copy_(take(whole[name], self.block(name, rank)))
        return divided

    def empty(self, name: str, old: nn.Parameter, rank: int, device: torch.device | None = None) -> nn.Parameter:
        """The block of the parameter `name` that `rank` of the grid has, uninitialised; trained as `old` is, with
        its type, and by default on its device."""
        shape = self.block(name, rank).shape
        block = torch.empty(shape, dtype=old.dtype, device=device or old.device)
        parameter = nn.Parameter(block, requires_grad=old.requires_grad)
        setattr(parameter, PLACEMENT, self.placements[name])
        return parameter


def take(whole: torch.Tensor, block: Block) -> torch.Tensor:
    """The elements of a whole tensor that are in `block`, copied into a new tensor of the block's shape."""
    values = whole.new_empty(block.shape)
    for box in block.boxes():
        values[box.memory] = whole[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))]
    return values


def put(whole: torch.Tensor, block: Block, values: torch.Tensor) -> None:
    """Copy a block's `values` to their places in a whole tensor."""
    for box in block.boxes():
        whole[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))] = values[box.memory]
