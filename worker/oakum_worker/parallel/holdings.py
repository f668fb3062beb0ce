"""Tells which rank holds which blocks of which tensors, from ranks and shapes alone.

A trainer's state is cut into *parts*. In a sharded trainer, part r of n is what rank r of n holds: FSDP2 splits
each parameter along its first dimension into chunks of equal length, rounded up, so the last parts may have
shorter chunks or none; optimizer moments are split like their parameter. In a pipeline, tensors stay whole, and a
part is a layer with all its tensors; several ranks may hold it. In a tensor-parallel trainer, a part is what a set
of ranks holds in common: a block of each of some tensors.

The first two kinds of parts are known by their numbers. Blocks differ from grid to grid, so a part of them names
its grid, and a tensor knows its blocks in every grid that a state may have been left in.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from oakum_worker.parallel.blocks import Block


class Grids(Protocol):
    """Interface that tells how the grids of a trainer's ranks cut one tensor into blocks."""

    def block(self, grid: str, number: int) -> Block | None:
        """The elements that part `number` of the grid named `grid` has of this tensor; None where it has none."""


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """A tensor that not every rank holds in full."""

    path: str
    shape: tuple[int, ...]
    """Shape of the whole tensor. A tensor without dimensions counts as one row of shape (1,)."""
    dtype: torch.dtype
    home: int | None = None
    """Number of the part that holds the whole tensor; None where every part holds some of its rows."""
    grids: Grids | None = field(default=None, compare=False)
    """The tensor's blocks, for parts that name a grid."""

    @property
    def num_rows(self) -> int:
        """Length of the first dimension; 1 for a tensor without dimensions."""
        return self.shape[0] if self.shape else 1

    @property
    def whole(self) -> Block:
        """All of the tensor."""
        return self.rows(range(self.num_rows))

    @property
    def nothing(self) -> Block:
        """The empty block: what a rank holds of the tensor when it holds no row of it."""
        return _nothing_of(self.shape)

    @property
    def num_bytes(self) -> int:
        """Size of the whole tensor in bytes."""
        return self.whole.num_elements * self.dtype.itemsize

    def rows(self, rows: range) -> Block:
        """The block of the tensor that consists of the rows `rows`, each in full."""
        return Block.of([rows, *map(range, self.shape[1:])])

    def empty(self, block: Block, device: torch.device | None = None) -> torch.Tensor:
        """Uninitialised memory for a block."""
        return torch.empty(block.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Part `number` of the `num_parts` of a state, or a share of it: share `index` of `count` even shares."""

    num_parts: int
    number: int
    index: int = 0
    count: int = 1
    grid: str = ""
    """Name of the grid whose blocks the part consists of; empty for parts of rows and of whole tensors."""

    def block(self, tensor: SplitTensor) -> Block:
        """The block of `tensor` that belongs to this part; possibly an empty one."""
        block = self._undivided(tensor)
        return block if self.count == 1 else block.share(self.index, self.count)

    def _undivided(self, tensor: SplitTensor) -> Block:
        if self.grid:
            block = tensor.grids.block(self.grid, self.number) if tensor.grids is not None else None
            return block if block is not None else tensor.nothing
        return _rows_of(tensor.shape, tensor.home, self.num_parts, self.number)

    def shares(self, count: int) -> list[Part]:
        """Divide the part into `count` shares. The part must not be a share itself."""
        return [replace(self, index=index, count=count) for index in range(count)]

    def to_json(self) -> list[int | str]:
        """The fields as a list for JSON; `Part(*fields)` restores the part."""
        numbers: list[int | str] = [self.num_parts, self.number, self.index, self.count]
        return [*numbers, self.grid] if self.grid else numbers


@functools.lru_cache(maxsize=1 << 16)
def _nothing_of(shape: tuple[int, ...]) -> Block:
    """The empty block of a tensor of this shape. Remembered, because most parts of a grid have nothing of most
    tensors."""
    return Block.of([range(0), *map(range, shape[1:])])


@functools.lru_cache(maxsize=1 << 16)
def _rows_of(shape: tuple[int, ...], home: int | None, num_parts: int, number: int) -> Block:
    """The rows that part `number` of `num_parts` has of a tensor of this shape. Remembered, because every copy and
    every change of nodes needs them for each tensor, part and rank."""
    num_rows = shape[0] if shape else 1
    if home is None:
        chunk = -(-num_rows // num_parts)
        rows = range(num_rows)[number * chunk : (number + 1) * chunk]
    else:
        rows = range(num_rows if home == number else 0)
    return Block.of([rows, *map(range, shape[1:])])


Rows = Mapping[str, torch.Tensor]
"""Path of a tensor -> a block of it, such as some of its rows."""


@dataclass(frozen=True)
class Holdings:
    """The parts of the state that each rank of a generation holds. At least one rank holds each part."""

    by_rank: tuple[tuple[Part, ...], ...]

    @classmethod
    def one_each(cls, world_size: int) -> Holdings:
        """Holdings of a sharded trainer: rank r holds part r."""
        return cls(tuple((Part(world_size, rank),) for rank in range(world_size)))

    @property
    def world_size(self) -> int:
        """Ranks of the generation."""
        return len(self.by_rank)

    @property
    def parts(self) -> list[Part]:
        """All parts in order, each once."""
        return sorted({part for parts in self.by_rank for part in parts})

    def all(self) -> list[tuple[Part, int]]:
        """(part, rank) for every rank that holds the part."""
        return [(part, rank) for rank, parts in enumerate(self.by_rank) for part in parts]

    def first_holders(self) -> dict[Part, int]:
        """Part -> the lowest rank that holds it."""
        return dict(reversed(self.all()))


@dataclass(frozen=True)
class Place:
    """One rank's number in its generation, with the holdings of all ranks."""

    holdings: Holdings
    rank: int

    @property
    def world_size(self) -> int:
        """Ranks of the generation."""
        return self.holdings.world_size

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that this rank holds."""
        return self.holdings.by_rank[self.rank]

    @property
    def first_of(self) -> tuple[Part, ...]:
        """The parts that this rank holds and no lower rank does."""
        holders = self.holdings.first_holders()
        return tuple(part for part in self.parts if holders[part] == self.rank)


def block_of(parts: Iterable[Part], tensor: SplitTensor) -> Block:
    """The block of `tensor` that a rank with these parts holds. At most one of the parts has any of it."""
    return next((block for part in parts if (block := part.block(tensor))), tensor.nothing)


def by_part(parts: Iterable[Part], tensors: Iterable[SplitTensor], rows: Rows) -> dict[Part, Rows]:
    """Sort one rank's blocks by the part to which they belong. Returns part -> (path -> block); a part's entry
    leaves out tensors of which the part has nothing."""
    known = list(tensors)
    return {part: {t.path: rows[t.path] for t in known if part.block(t)} for part in parts}
