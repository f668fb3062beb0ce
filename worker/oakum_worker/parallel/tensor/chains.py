"""A chain whose layers compute on a grid and hand plain tensors to each other: a rank's own blocks.

Between two layers, a pipeline's stages send what a layer has returned to another rank, and start a graph of their
own. So each layer takes blocks and returns blocks, and knows from its conversion of which tensors they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from oakum_worker.chain import Chain
from oakum_worker.errors import TaskError
from oakum_worker.parallel.tensor.computing import computing
from oakum_worker.parallel.tensor.conversion import Conversion
from oakum_worker.parallel.tensor.convert import convert
from oakum_worker.parallel.tensor.grids import Grid
from oakum_worker.parallel.tensor.placements import Split, Splits
from oakum_worker.parallel.tensor.spread import Spread
from oakum_worker.parallel.tensor.wires import Wires
from oakum_worker.randomness.sample_randomness import present_samples


@dataclass(frozen=True)
class Boundary:
    """A tensor that one layer hands to the next, as it was for `num_samples` samples."""

    shape: tuple[int, ...]
    splits: Splits
    num_samples: int

    def of(self, num_samples: int) -> Boundary:
        """The description of the tensor for another number of samples."""
        shape, splits = list(self.shape), list(self.splits)
        for dim, split in enumerate(self.splits):
            if split is not None and _cuts_samples(split):
                shape[dim] = self.shape[dim] // split.units * num_samples
                splits[dim] = replace(split, units=num_samples)
        return Boundary(tuple(shape), tuple(splits), num_samples)

    def count_samples(self, local: torch.Tensor, grid: Grid) -> int:
        """The samples of the micro-batch of which a rank has the block `local`, if all blocks are equal."""
        dim, split = next((dim, s) for dim, s in enumerate(self.splits) if s is not None and _cuts_samples(s))
        blocks = 1
        for axis in split.axes:
            blocks *= grid.lengths[axis]
        return local.shape[dim] * blocks * split.units // self.shape[dim]


@dataclass(frozen=True)
class ChainConversion:
    """The conversion of a chain's model, with what its layers hand to each other."""

    conversion: Conversion
    boundaries: tuple[tuple[Boundary | None, ...], ...]
    """For each layer, of each tensor that it returns; None for a tensor that all ranks have."""

    def chain(
        self, chain: Chain, layers: Sequence[nn.Module], wires: Wires, *, keep_gathered: bool = False
    ) -> Chain:
        """A chain that computes on this rank's blocks, which are the parameters of `layers`.

        A layer's output is this rank's blocks of the whole output. Each micro-batch has to be given whole to
        `inputs` and `loss`, which returns the whole loss on every rank. Its number of samples has to be divided by
        the grid's blocks of samples, unless it is computed within `SampleRandomness.samples`, which tells it.
        """
        work = _Blocks(self, wires, keep_gathered)
        wrapped = [_BlockLayer(layer, number, work) for number, layer in enumerate(layers)]
        return Chain(wrapped, chain.inputs, lambda output, batch: work.loss(chain, output, batch))


def convert_chain(chain: Chain, model: nn.Module, grid: Grid, batch: Any, num_samples: int) -> ChainConversion:
    """Find out how a chain's model, still whole, is computed on a grid, by one forward pass of a batch of
    `num_samples` samples in this process. Returns the conversion, with what the layers hand to each other.

    Changes nothing of the model but buffers, as its forward pass changes them. Raises `TaskError` as `convert`
    does.
    """
    boundaries: list[tuple[Boundary | None, ...]] = []

    def forward(share: Callable[[Any], Any]) -> Any:
        shared = share(batch)
        values = chain.inputs(shared)
        for number in range(len(chain.layers)):
            values = chain.run(range(number, number + 1), values)
            boundaries.append(tuple(_boundary(value, num_samples) for value in _parts(values)))
        return chain.end(values, shared)

    conversion = convert(model, grid, forward, num_samples)
    return ChainConversion(conversion, tuple(boundaries))


class _Blocks:
    """Computes the layers and the loss of one converted chain on this rank's blocks. All layers of the chain share
    it. The micro-batch's size is found anew at each call, from the values that are given."""

    def __init__(self, plan: ChainConversion, wires: Wires, keep_gathered: bool) -> None:
        self._plan, self._wires, self._keep = plan, wires, keep_gathered

    def run(self, layer: nn.Module, number: int, values: tuple[Any, ...]) -> Any:
        """The blocks of the layer's output, for those of its inputs."""
        count = self._count(number, values)
        with computing(self._wires, count, keep_gathered=self._keep) as share:
            output = layer(*self._spread(number, values, count, share))
        blocks = tuple(value.local if isinstance(value, Spread) else value for value in _parts(output))
        return blocks if isinstance(output, tuple) else blocks[0]

    def loss(self, chain: Chain, output: Any, batch: Any) -> Any:
        """The whole loss, for the blocks of the last layer's output."""
        last = len(self._plan.boundaries)
        values = _parts(output)
        count = self._count(last, values)
        with computing(self._wires, count, keep_gathered=self._keep) as share:
            spread = self._spread(last, values, count, share)
            return chain.loss(spread if isinstance(output, tuple) else spread[0], share(batch))

    def _count(self, number: int, values: tuple[Any, ...]) -> int:
        present = present_samples()
        if present is not None:
            return present[2]
        if number == 0:
            return values[0].shape[0]
        for boundary, value in zip(self._plan.boundaries[number - 1], values, strict=True):
            if boundary is not None:
                return boundary.count_samples(value, self._wires.grid)
        raise TaskError(f"layer {number - 1} of the chain returned no tensor of samples: return one")

    def _spread(self, number: int, values: tuple[Any, ...], count: int, share: Any) -> tuple[Any, ...]:
        """The tensors of which a layer is given blocks; the first layer is given whole ones."""
        if number == 0:
            return tuple(share(value) for value in values)
        work = share(torch.empty(count)).work
        spread = []
        for boundary, value in zip(self._plan.boundaries[number - 1], values, strict=True):
            known = None if boundary is None else boundary.of(count)
            spread.append(value if known is None else Spread(value, known.shape, known.splits, work))
        return tuple(spread)


class _BlockLayer(nn.Module):
    def __init__(self, layer: nn.Module, number: int, work: _Blocks) -> None:
        super().__init__()
        self.layer = layer
        self._number, self._work = number, work

    def forward(self, *values: Any) -> Any:
        return self._work.run(self.layer, self._number, values)


def _boundary(value: Any, num_samples: int) -> Boundary | None:
    return Boundary(tuple(value.shape), value.splits, num_samples) if isinstance(value, Spread) else None


def _cuts_samples(split: Split) -> bool:
    return split.axes[:1] in ((), ("i",))


def _parts(values: Any) -> tuple[Any, ...]:
    return values if isinstance(values, tuple) else (values,)
