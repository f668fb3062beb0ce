"""This rank's part of a tensor-parallel trainer's state: its blocks of the parameters, and their moments.

Parameters, and moments of their shape, are divided into blocks as the generation's grid says. Other tensors of
model and optimizer, such as step counts and buffers, are whole on every rank that has a seat. A spare rank has
none of them, so its own document lacks the optimizer's state; `complete` joins the ranks' documents.

The state's document has the whole tensors' shapes. It equals that of a replicated trainer, whatever the grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from oakum_worker.errors import TaskError
from oakum_worker.parallel.arranging import LayoutArranger
from oakum_worker.parallel.blocks import Block
from oakum_worker.parallel.divided_state import DividedState
from oakum_worker.parallel.grids.arranging import GridArranger
from oakum_worker.parallel.grids.model_grids import ModelGrids
from oakum_worker.parallel.grids.parts import GridParts
from oakum_worker.parallel.holdings import Grids, Holdings, Part, Place, SplitTensor
from oakum_worker.parallel.pipeline.arrangement import Arrangement
from oakum_worker.parallel.tensor.grids import ONE_RANK, Grid
from oakum_worker.parallel.whole_parameters import put_parameters
from oakum_worker.state.tree import Document, tensor_leaves
from oakum_worker.task import Task

WHOLE = Part(1, 0, grid=ONE_RANK.name)
"""The only part of the grid of one rank: all parameters in full."""


@dataclass(frozen=True)
class _Cuts(Grids):
    """`Grids` of one parameter, or of an optimizer's moment with its shape: finds the block that any part of
    any grid has of it."""

    state: BlockState
    parameter: str

    def block(self, grid: str, number: int) -> Block | None:
        return self.state.parts_in(grid).block(self.parameter, number)


@dataclass(frozen=True)
class _Common(Grids):
    """`Grids` of a tensor that every rank with a seat has in full, such as a step count: in every grid, the
    tensor belongs to the one part of its home that all ranks hold."""

    state: BlockState
    home: int
    whole: Block

    def block(self, grid: str, number: int) -> Block | None:
        return self.whole if number == self.state.parts_in(grid).common(self.home).number else None


class BlockState(DividedState[Arrangement]):
    """A state of whose parameters each rank has blocks, as a grid cuts them.

    Where the model's layers are in different grids of one form, each layer's tensors have a home of their own.
    """

    def __init__(
        self,
        task: Task,
        arranger: LayoutArranger[Any, Any, Arrangement],
        grids: ModelGrids,
        homes: Mapping[str, int] | None = None,
        num_homes: int = 1,
    ) -> None:
        """`grids` say how the model is cut on each grid, and `homes` the number of the home of each parameter and
        buffer; what it leaves out is whole on every rank. None: all have one home."""
        super().__init__(task, arranger)
        self._grids = grids
        self._homes = dict.fromkeys(self._keys, 0) if homes is None else homes
        self._num_homes = num_homes
        self._parts: dict[str, GridParts] = {}
        """By the grid's name."""

    @property
    def first_held(self) -> list[nn.Parameter]:
        """The blocks that this rank holds and no lower rank does: over all ranks, each element occurs once."""
        first = self.place.first_of
        return [
            p for name, p in self._held.items() if any(part.block(self._split_parameter(name)) for part in first)
        ]

    @property
    def whole_parts(self) -> Sequence[Part]:
        """The parts of a grid of one rank."""
        return self.parts_of(ONE_RANK).of(0, range(self._num_homes))

    def parts_of(self, grid: Grid) -> GridParts:
        """The parts of the state in a grid. Raises `TaskError` where the model does not go onto the grid."""
        return self.parts_in(grid.name)

    def parts_in(self, name: str) -> GridParts:
        """The parts of the state in the grid that is called `name`, such as `3d-2`. Raises `TaskError` where the
        model does not go onto the grid, and `ValueError` where no grid is called so."""
        if name not in self._parts:
            grid = Grid.named(name)
            blocks = {parameter: self.blocks(grid, parameter) for parameter in self._shapes}
            self._parts[name] = GridParts(name, grid.num_ranks, blocks, self._homes, self._num_homes)
        return self._parts[name]

    def blocks(self, grid: Grid, name: str) -> list[Block]:
        """For each rank of the grid, its block of the parameter `name`."""
        shape = self._shapes[name]
        if grid.num_ranks == 1 or not shape:
            return [Block.of([*map(range, shape or (1,))])] * grid.num_ranks
        conversion = self._grids.conversion(grid)
        return [conversion.block(name, rank) for rank in range(grid.num_ranks)]

    def _describe_whole(self, name: str, values: Document) -> None:
        """Change the document of a parameter's optimizer state, `values`: moments of the shape of this rank's
        block get the shape of the whole parameter. Raises `TaskError` for a moment of another shape."""
        whole, local = self._shapes[name], tuple(self._held[name].shape)
        if local == whole:
            return
        for leaf in tensor_leaves(values):
            if tuple(leaf["shape"]) == local:
                leaf["shape"] = list(whole)
            elif leaf["shape"]:
                raise TaskError(
                    f"{leaf['$tensor']} of shape {tuple(leaf['shape'])} is not shaped like this rank's block of "
                    f"{name}, {local}: use an optimizer whose moments are, such as AdamW, or leave out "
                    "parallel.tensor"
                )

    def _split_parameter(self, name: str) -> SplitTensor:
        split = self._split(self._document[name], name, is_divided=True)
        assert split is not None
        return split

    def _split(self, leaf: dict[str, Any], name: str, *, is_divided: bool) -> SplitTensor | None:
        """The `SplitTensor` for a leaf: divided as the parameter is, or else whole on every rank that holds the
        home of `name`; None where it has no home."""
        if name not in self._homes:
            return None
        shape, dtype = tuple(leaf["shape"]), getattr(torch, leaf["dtype"])
        whole = Block.of([*map(range, shape or (1,))])
        grids = _Cuts(self, name) if is_divided else _Common(self, self._homes[name], whole)
        return SplitTensor(leaf["$tensor"], shape, dtype, grids=grids)


class GridState(BlockState):
    """The state of a tensor-parallel trainer: the task's model and optimizer, of whose parameters this rank has
    blocks in each generation.

    `task.model` and the optimizer stay the same objects and get other parameters. Until the first generation they
    have the user's own. A spare rank's parameters are on the meta device, without data.
    """

    def __init__(self, task: Task, arranger: GridArranger) -> None:
        super().__init__(task, arranger, arranger.grids)
        self.arrangement = Arrangement(1, 1)
        self.place = Place(Holdings(((WHOLE,),)), 0)

    def _holdings(self, arrangement: Arrangement) -> Holdings:
        parts = self.parts_of(arrangement.grid)
        seats = [arrangement.seat(rank) for rank in range(arrangement.world_size)]
        return Holdings(tuple(() if seat is None else parts.of(seat.position) for seat in seats))

    def _install(self, rank: int) -> Mapping[str, nn.Parameter]:
        model, grid, seat = self._task.model, self.arrangement.grid, self.arrangement.seat(rank)
        if seat is None or grid.num_ranks == 1:
            device = "meta" if seat is None else self.device
            put_parameters(model, {name: kind.empty(device) for name, kind in self._kinds.items()})
        else:
            self._grids.conversion(grid).install(model, seat.position, self.device)
        return {} if seat is None else dict(model.named_parameters())

    @property
    def _tells_moments(self) -> bool:
        has_seat = self.arrangement.seat(self.place.rank) is not None
        return self.place.rank == 0 or not has_seat
