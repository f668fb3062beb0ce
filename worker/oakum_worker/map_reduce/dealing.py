"""Deals a round's blocks to ranks, some of which may have kept blocks' statistics of a round that broke off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oakum_worker.map_reduce.sums import Node, blocks_of


@dataclass(frozen=True)
class Share:
    """One rank's part of a round: which statistics it keeps, and which blocks it maps."""

    keeps: frozenset[Node]
    """Nodes that the rank has and that count; the others it has are another rank's."""
    computes: tuple[int, ...]
    """Blocks whose statistics the rank computes, in their order."""


def even_shares(num_blocks: int, num_ranks: int) -> list[Share]:
    """Shares of a round of which no rank holds anything."""
    return deal([[0] * num_blocks] * num_ranks)


def deal(held: Sequence[Sequence[int]]) -> list[Share]:
    """Assign a round's blocks to ranks; returns each rank's share. `held[rank][block]` tells what a rank has
    already, as `BlockSums.levels` does.

    Statistics that several ranks hold are kept by the lowest of them. Blocks that no rank holds are divided
    evenly, consecutive blocks to each rank.
    """
    num_blocks = len(held[0])
    taken: set[int] = set()
    keeps: list[frozenset[Node]] = []
    for levels in held:
        nodes = {(level - 1, block >> (level - 1)) for block, level in enumerate(levels) if level}
        fresh = {node for node in nodes if taken.isdisjoint(blocks_of(node, num_blocks))}
        taken.update(block for node in fresh for block in blocks_of(node, num_blocks))
        keeps.append(frozenset(fresh))
    missing = [block for block in range(num_blocks) if block not in taken]
    count, size = len(missing), len(held)
    return [
        Share(kept, tuple(missing[count * rank // size : count * (rank + 1) // size]))
        for rank, kept in enumerate(keeps)
    ]
