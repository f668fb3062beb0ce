"""Divides a global batch into the shares of the ranks and these into micro-batches."""

from __future__ import annotations

import itertools
from typing import NamedTuple


class Chunk(NamedTuple):
    """One micro-batch of one rank: which samples it has, and how many of them count."""

    positions: range
    """Positions of its samples in the global batch; never empty."""
    num_counted: int
    """Number of samples that count in the loss: all, or 0 for a filler that only keeps the ranks in step."""


def equal_chunks(num_samples: int, rank: int, world_size: int, micro_batch: int | None) -> list[Chunk]:
    """The micro-batches of `rank`, of at most `micro_batch` samples each (None: no limit). Every rank gets the
    same number of them; where a rank's samples run out, fillers take their place."""
    largest = -(-num_samples // world_size)
    num_chunks = -(-largest // min(micro_batch or largest, largest))
    share = share_of(num_samples, rank, world_size)
    return cut_evenly(share, num_chunks)


def cut_evenly(share: range, num_chunks: int) -> list[Chunk]:
    """Cut a share of a global batch into `num_chunks` micro-batches whose sizes differ by at most one. Where
    there are fewer samples than micro-batches, the others are fillers: the global batch's first sample, which
    does not count. Returns the micro-batches in order."""
    bounds = [share.start + len(share) * index // num_chunks for index in range(num_chunks + 1)]
    parts = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
    return [Chunk(part or range(1), len(part)) for part in parts]


def own_chunks(num_samples: int, rank: int, world_size: int, micro_batch: int | None) -> list[Chunk]:
    """The micro-batches of `rank`, of at most `micro_batch` samples each (None: no limit). Their number may differ
    from rank to rank; a rank without samples gets none."""
    share = share_of(num_samples, rank, world_size)
    size = micro_batch or max(len(share), 1)
    parts = [range(start, min(start + size, share.stop)) for start in range(share.start, share.stop, size)]
    return [Chunk(part, len(part)) for part in parts]


def share_of(num_samples: int, rank: int, world_size: int) -> range:
    """Positions in the global batch that `rank` computes: contiguous and possibly empty.

    The shares of two ranks differ by at most one sample.
    """
    return range(num_samples * rank // world_size, num_samples * (rank + 1) // world_size)
