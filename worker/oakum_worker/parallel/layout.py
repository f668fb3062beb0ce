"""Which rows of which tensors are where, as a function of ranks and shapes alone.

A state is cut into *parts*. Where the trainer is sharded, part r of n is what rank r of n holds: FSDP2 splits
each parameter along its first dimension into chunks of equal length, rounded up, so that the last parts may have
shorter ones or none, and optimizer moments follow their parameter. Where the model is spread over a pipeline,
tensors stay whole and a part is a layer with all that belongs to it, which several ranks may hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """A tensor that not every rank holds in full."""

    path: str
    shape: tuple[int, ...]
    """Of the whole tensor. Rows of one without a dimension are of shape (1,)."""
    dtype: torch.dtype
    home: int | None = None
    """The part that it belongs to as a whole; None where each part has some of its rows."""

    @property
    def num_rows(self) -> int:
        """Length along the first dimension."""
        return self.shape[0] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        length = self.dtype.itemsize
        for size in self.shape[1:]:
            length *= size
        return length

    def empty(self, rows: range, device: torch.device | None = None) -> torch.Tensor:
        """Uninitialised memory for so many rows."""
        return torch.empty((len(rows), *self.shape[1:]), dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """Part `number` of `num_parts`; with a `count`, the `index`-th of so many even shares of that."""

    num_parts: int
    number: int
    index: int = 0
    count: int = 1

    def rows(self, tensor: SplitTensor) -> range:
        """The part's rows of the tensor."""
        whole = range(tensor.num_rows)
        if tensor.home is None:
            chunk = -(-tensor.num_rows // self.num_parts)
            whole = whole[self.number * chunk : (self.number + 1) * chunk]
        elif tensor.home != self.number:
            whole = range(0)
        return whole[len(whole) * self.index // self.count : len(whole) * (self.index + 1) // self.count]

    def shares(self, count: int) -> list[Part]:
        """The part, which is not a share itself, in so many shares."""
        return [Part(self.num_parts, self.number, index, count) for index in range(count)]

    def to_numbers(self) -> list[int]:
        """For a JSON document; `Part(*numbers)` is the part again."""
        return [self.num_parts, self.number, self.index, self.count]


Rows = Mapping[str, torch.Tensor]
"""Rows of some parts, by the path of the tensor they belong to."""


@dataclass(frozen=True)
class Holdings:
    """Which parts of the state each rank of a generation holds. Every part is with one of them at least."""

    by_rank: tuple[tuple[Part, ...], ...]

    @classmethod
    def one_each(cls, world_size: int) -> Holdings:
        """Rank r holds part r."""
        return cls(tuple((Part(world_size, rank),) for rank in range(world_size)))

    @property
    def world_size(self) -> int:
        """Ranks of the generation."""
        return len(self.by_rank)

    @property
    def parts(self) -> list[Part]:
        """All of them, each once."""
        return sorted({part for parts in self.by_rank for part in parts})

    def all(self) -> list[tuple[Part, int]]:
        """(part, rank) for every rank that holds the part."""
        return [(part, rank) for rank, parts in enumerate(self.by_rank) for part in parts]

    def first_holders(self) -> dict[Part, int]:
        """The lowest rank that holds each part."""
        return dict(reversed(self.all()))


@dataclass(frozen=True)
class Place:
    """One rank's place in a generation."""

    holdings: Holdings
    rank: int

    @property
    def world_size(self) -> int:
        """Ranks of the generation."""
        return self.holdings.world_size

    @property
    def parts(self) -> tuple[Part, ...]:
        """What this rank holds."""
        return self.holdings.by_rank[self.rank]

    @property
    def first_of(self) -> tuple[Part, ...]:
        """Those parts of which it is the lowest holder."""
        holders = self.holdings.first_holders()
        return tuple(part for part in self.parts if holders[part] == self.rank)


def rows_of(parts: Iterable[Part], tensor: SplitTensor) -> range:
    """The rows of a tensor that one rank holds, whose parts are these; they are in one of them."""
    return next((rows for part in parts if (rows := part.rows(tensor))), range(0))


def by_part(parts: Iterable[Part], tensors: Iterable[SplitTensor], rows: Rows) -> dict[Part, Rows]:
    """One rank's rows, told apart by part; only those that there are."""
    known = list(tensors)
    return {part: {t.path: rows[t.path] for t in known if part.rows(t)} for part in parts}


def intersection(first: range, second: range) -> range:
    """The rows that both contain."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))
