"""Statistics of blocks, added up along a binary tree over the blocks' numbers, whoever has computed them.

A node (level, index) of the tree stands for the blocks index 2^level .. (index + 1) 2^level - 1. A node has the
combination of its two children, left first; without blocks on the right it has the left child's. So each sum has
the same terms in the same order, and the same bits, however the blocks are dealt. A rank sends only the topmost
nodes of its blocks: at most 2 log2(blocks) for blocks in a row, and mostly one or two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
Node = tuple[int, int]
"""(level, index)."""


class BlockSums:
    """A sum of blocks' statistics in progress: `nodes` has the topmost nodes of the tree over `num_blocks`
    blocks that can be computed from what was added so far."""

    def __init__(self, num_blocks: int, combine: Callable[[Arrays, Arrays], Arrays]) -> None:
        self.num_blocks = num_blocks
        self._combine = combine
        self.nodes: dict[Node, Arrays] = {}

    def add(self, block: int, statistics: Arrays) -> None:
        """Add the statistics of one block."""
        self.add_node((0, block), statistics)

    def add_node(self, node: Node, statistics: Arrays) -> None:
        """Add a node, whose blocks must not have been added, and combine it as far up as possible."""
        level, index = node
        while 1 << level < self.num_blocks:
            sibling = (level, index ^ 1)
            if sibling in self.nodes:
                other = self.nodes.pop(sibling)
                pair = (other, statistics) if index & 1 else (statistics, other)
                statistics = self._combine(*pair)
            elif index & 1 or (index + 1) << level < self.num_blocks:
                break
            level, index = level + 1, index >> 1
        self.nodes[level, index] = statistics

    def offer(self, node: Node, statistics: Arrays) -> None:
        """Add a node of blocks of which some may have been added. A node whose blocks are all known adds nothing;
        a node that covers known ones takes their place, with equal bits."""
        offered = set(blocks_of(node, self.num_blocks))
        for added in list(self.nodes):
            blocks = blocks_of(added, self.num_blocks)
            if offered.issubset(blocks):
                return
            if offered.issuperset(blocks):
                del self.nodes[added]
        self.add_node(node, statistics)

    @property
    def blocks(self) -> set[int]:
        """The blocks that are known."""
        return {block for node in self.nodes for block in blocks_of(node, self.num_blocks)}

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are known."""
        return len(self.nodes) == 1 and len(self.blocks) == self.num_blocks

    def levels(self) -> list[int]:
        """One number for each block: 0 if its statistics have not been added, else 1 + the level of the topmost
        node of the summation tree that contains them. A single block is a node of level 0."""
        levels = [0] * self.num_blocks
        for node in self.nodes:
            for block in blocks_of(node, self.num_blocks):
                levels[block] = 1 + node[0]
        return levels

    def keep_only(self, nodes: set[Node]) -> None:
        """Drop all other nodes."""
        self.nodes = {node: statistics for node, statistics in self.nodes.items() if node in nodes}

    @property
    def total(self) -> Arrays:
        """The statistics of all blocks. Raises `ValueError` while some are missing."""
        if not self.is_complete:
            missing = self.levels().count(0)
            raise ValueError(
                f"the statistics of {missing} of {self.num_blocks} blocks are missing: add them first"
            )
        return next(iter(self.nodes.values()))


def blocks_of(node: Node, num_blocks: int) -> range:
    """The blocks that a node stands for."""
    level, index = node
    return range(index << level, min((index + 1) << level, num_blocks))
