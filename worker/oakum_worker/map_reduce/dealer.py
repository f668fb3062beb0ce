"""Decides what each mapper does next in a round, and gives the blocks of slow mappers to idle ones, too.

A mapper asks when it begins, now and then while it maps, and when it has delivered. Its order is to map its
blocks, or to deliver the sums of those that it has mapped, or it waits. A mapper that takes much longer than the
others for its blocks is *slow*, be it that it computes slowly or that it has not come to the round yet: once
another mapper is idle, blocks that the slow one has not delivered are dealt again. The first delivery of a block
counts.

This module knows neither messages nor clocks: callers say who asks and what time it is.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oakum_worker.map_reduce.dealing import Share
from oakum_worker.map_reduce.sums import Arrays, BlockSums, Node, blocks_of

SLOW_FACTOR = 2.0
"""A mapper is slow when it takes this many times the median time of a block, for each of its blocks."""


@dataclass(frozen=True)
class Map:
    """An order to map these blocks, in this order."""

    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Deliver:
    """An order to deliver the sums that have not been delivered."""


Order = Map | Deliver | None
"""None: the mapper waits until it gets an order, or the round is over."""


class Dealer:
    """The blocks of one round: who maps them, who has mapped them, and the sums delivered so far."""

    def __init__(
        self,
        num_blocks: int,
        shares: Sequence[Share],
        combine: Callable[[Arrays, Arrays], Arrays],
        pace_s: deque[float],
        patience_s: float,
        now_s: float,
    ) -> None:
        """`pace_s` has the seconds that blocks took lately, of earlier rounds, too, and gets those of this one. No
        mapper is slow before `patience_s`. `shares` are those of all ranks, by rank."""
        self.sums = BlockSums(num_blocks, combine)
        self._pace_s, self._patience_s = pace_s, patience_s
        self._rows = [list(share.computes) for share in shares]
        self._holds = [
            {block for node in share.keeps for block in blocks_of(node, num_blocks)} for share in shares
        ]
        self._mapped = [0] * len(shares)
        self._since_s = [now_s] * len(shares)
        self._slow: set[int] = set()
        self._again: list[int] = []
        self.idle: list[int] = []
        """The mappers that wait for an order."""

    @property
    def is_complete(self) -> bool:
        """Whether all blocks are delivered."""
        return self.sums.is_complete

    def ask(self, rank: int, mapped: Sequence[int], now_s: float) -> Order:
        """The next order for a mapper that has mapped these blocks since it last asked."""
        done = set(mapped)
        self._rows[rank] = [block for block in self._rows[rank] if block not in done]
        self._holds[rank] |= done
        self._mapped[rank] += len(done)
        return self._next(rank, now_s)

    def take(self, rank: int, nodes: Mapping[Node, Arrays], now_s: float) -> Order:
        """Take what a mapper delivers; returns its next order. What was delivered before counts."""
        if rank not in self._slow and self._mapped[rank]:
            self._pace_s.append((now_s - self._since_s[rank]) / self._mapped[rank])
        self._slow.discard(rank)
        self._mapped[rank] = 0
        self._holds[rank].clear()
        for node, arrays in nodes.items():
            self.sums.offer(node, arrays)
        added = self.sums.blocks
        self._again = [block for block in self._again if block not in added]
        return None if self.is_complete else self._next(rank, now_s)

    def orders_at(self, now_s: float) -> dict[int, Order]:
        """Deal the blocks of mappers that are slow by now again; returns the orders of those that were idle."""
        if self.idle and not self.is_complete:
            for rank in range(len(self._rows)):
                if self._is_pending(rank) and self._slow_from_s(rank) <= now_s:
                    self._deal_again(rank)
        waiting, self.idle = (self.idle, []) if self._again else ([], self.idle)
        orders = {rank: self._next(rank, now_s) for rank in waiting}
        return {rank: order for rank, order in orders.items() if order is not None}

    @property
    def next_look_s(self) -> float | None:
        """The time from which `orders_at` may find a slow mapper whose blocks it can deal again; None while no
        mapper is idle, or nothing can become slow."""
        if not self.idle or self.is_complete:
            return None
        pending = [self._slow_from_s(rank) for rank in range(len(self._rows)) if self._is_pending(rank)]
        return min((at_s for at_s in pending if at_s < float("inf")), default=None)

    def _is_pending(self, rank: int) -> bool:
        return rank not in self._slow and bool(self._rows[rank] or self._holds[rank])

    def _slow_from_s(self, rank: int) -> float:
        if not self._pace_s:
            return float("inf")  # nothing is known of how long a block takes
        usual_s = statistics.median(self._pace_s) * (len(self._rows[rank]) + len(self._holds[rank]))
        return self._since_s[rank] + max(self._patience_s, SLOW_FACTOR * usual_s)

    def _deal_again(self, rank: int) -> None:
        """What others map already stays with them alone."""
        self._slow.add(rank)
        busy = set(self._again) | self.sums.blocks
        for other in range(len(self._rows)):
            if other != rank and other not in self._slow:
                busy |= {*self._rows[other], *self._holds[other]}
        self._again += sorted({*self._rows[rank], *self._holds[rank]} - busy)
        self._rows[rank] = []

    def _next(self, rank: int, now_s: float) -> Order:
        if self._rows[rank]:
            return Map(tuple(self._rows[rank]))
        if self._holds[rank]:
            return Deliver()
        if not self._again:
            self.idle.append(rank)
            return None
        count = -(-len(self._again) // max(len(self._rows) - len(self._slow), 1))
        self._rows[rank], self._again = self._again[:count], self._again[count:]
        self._since_s[rank] = now_s
        self._slow.discard(rank)
        return Map(tuple(self._rows[rank]))
