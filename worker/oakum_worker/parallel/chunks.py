"""The micro-batches that a rank computes of a global batch."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from oakum_worker.sampler import share_of


class Chunk(NamedTuple):
    """A micro-batch of one rank."""

    positions: range
    """Of its samples within the global batch; never empty."""
    num_counted: int
    """How many of them count: all or none."""


def equal_chunks(num_samples: int, rank: int, world_size: int, micro_batch: int | None) -> list[Chunk]:
    """What a rank computes of a global batch, in as many micro-batches as every other rank."""
    largest = -(-num_samples // world_size)
    num_chunks = -(-largest // min(micro_batch or largest, largest))
    share = share_of(num_samples, rank, world_size)
    return cut_evenly(share, num_chunks)


def cut_evenly(share: range, num_chunks: int) -> list[Chunk]:
    """A share of a global batch in so many micro-batches; those that are left without a sample count nothing."""
    bounds = [share.start + len(share) * index // num_chunks for index in range(num_chunks + 1)]
    parts = [range(start, stop) for start, stop in itertools.pairwise(bounds)]
    return [Chunk(part or range(1), len(part)) for part in parts]


def own_chunks(num_samples: int, rank: int, world_size: int, micro_batch: int | None) -> list[Chunk]:
    """What a rank computes of a global batch, however many micro-batches others have; none without a share."""
    share = share_of(num_samples, rank, world_size)
    size = micro_batch or max(len(share), 1)
    parts = [range(start, min(start + size, share.stop)) for start in range(share.start, share.stop, size)]
    return [Chunk(part, len(part)) for part in parts]
