"""Which rows of which tensors are where, as a function of ranks and shapes alone.

FSDP2 splits each parameter along its first dimension into chunks of equal length, rounded up: the last ranks may
get shorter ones or none. Optimizer moments follow their parameter. Nothing else is split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SplitTensor:
    """A tensor of which every rank holds some rows."""

    path: str
    shape: tuple[int, ...]
    """Of the whole tensor; one dimension at least."""
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        length = self.dtype.itemsize
        for size in self.shape[1:]:
            length *= size
        return length

    def empty(self, part: Part, device: torch.device | None = None) -> torch.Tensor:
        """Uninitialised memory for the rows of a part."""
        shape = (len(part.rows(self.shape[0])), *self.shape[1:])
        return torch.empty(shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """What rank `rank` of `world_size` holds; with a `count`, the `index`-th of so many even shares of that."""

    world_size: int
    rank: int
    index: int = 0
    count: int = 1

    def rows(self, num_rows: int) -> range:
        """The part's rows of a tensor that has `num_rows`."""
        chunk = -(-num_rows // self.world_size)
        whole = range(num_rows)[self.rank * chunk : (self.rank + 1) * chunk]
        return whole[len(whole) * self.index // self.count : len(whole) * (self.index + 1) // self.count]

    def shares(self, count: int) -> list[Part]:
        """The part, which is not a share itself, in so many shares."""
        return [Part(self.world_size, self.rank, index, count) for index in range(count)]

    def to_numbers(self) -> list[int]:
        """For a JSON document; `Part(*numbers)` is the part again."""
        return [self.world_size, self.rank, self.index, self.count]


Rows = Mapping[str, torch.Tensor]
"""The rows of a part, by the path of the tensor they belong to."""


def intersection(first: range, second: range) -> range:
    """The rows that both contain."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))
