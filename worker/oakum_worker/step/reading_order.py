"""Foretells which samples a rank reads next, so that they can be read before the rank asks for them.

A wrong guess costs time alone: whoever reads ahead drops what was not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from oakum_worker.parallel.chunks import Chunk
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.sampler import ElasticSampler


class Share(NamedTuple):
    """The part of every global batch that an engine asks for."""

    number: int
    shares: int
    """Shares that the batch is divided into; `number` is one of them, from 0."""
    together: bool
    """Whether every share has the same number of micro-batches."""


class Read(NamedTuple):
    """One read: the samples of a micro-batch."""

    epoch: int
    position: int
    """Number of its first sample in the epoch's order."""
    indices: tuple[int, ...]
    """The samples' numbers in the data set."""


class ReadingOrder:
    """Learns in each step which micro-batches a rank reads in which order, and expects the same of later steps."""

    def __init__(
        self, sampler: ElasticSampler, epochs: int, divide: Callable[[int, Share], Sequence[Chunk]]
    ) -> None:
        """`divide(samples, share)` gives the micro-batches of a share of a global batch of so many samples."""
        self._sampler = sampler
        self._epochs = epochs
        self._divide = divide
        self._step = -1
        self._asked: dict[Share, Sequence[Chunk]] = {}
        """The shares that the present step's engine has asked for, with their micro-batches."""
        self._order: list[tuple[Share, int]] = []
        """(share, number of the micro-batch in it) of the present step's reads, in order."""
        self._before: tuple[frozenset[Share], list[tuple[Share, int]]] = frozenset(), []
        """The shares and the order of the last step."""

    def note(self, cursor: Cursor, share: Share, chunks: Sequence[Chunk]) -> None:
        """The engine has asked for this share of the batch at the cursor."""
        self._begin(cursor)
        self._asked[share] = chunks

    def following(self, cursor: Cursor, positions: range) -> Iterator[Read]:
        """Note that the rank reads the samples at `positions` of the batch at the cursor. Returns the reads that
        are expected after this one, up to the last epoch's end; none where these positions were not asked for."""
        self._begin(cursor)
        here = self._micro_batch(positions)
        if here is None:
            return iter(())
        self._order.append(here)
        shares, order = self._before
        if shares != frozenset(self._asked) or here not in order:
            order = [(share, number) for share, chunks in self._asked.items() for number in range(len(chunks))]
        return self._reads(cursor, order, order.index(here) + 1)

    def _begin(self, cursor: Cursor) -> None:
        if cursor.step != self._step:
            self._before = frozenset(self._asked), self._order
            self._step, self._asked, self._order = cursor.step, {}, []

    def _micro_batch(self, positions: range) -> tuple[Share, int] | None:
        done = set(self._order)
        for share, chunks in self._asked.items():
            for number, chunk in enumerate(chunks):
                if chunk.positions == positions and (share, number) not in done:
                    return share, number
        return None

    def _reads(self, cursor: Cursor, order: Sequence[tuple[Share, int]], begin: int) -> Iterator[Read]:
        while cursor.epoch < self._epochs:
            size = self._sampler.batch_size(cursor)
            chunks = {share: self._divide(size, share) for share in {share for share, _ in order}}
            for share, number in order[begin:]:
                if number < len(chunks[share]):
                    positions = chunks[share][number].positions
                    indices = self._sampler.indices(cursor, positions)
                    yield Read(cursor.epoch, cursor.consumed + positions.start, tuple(indices))
            cursor, begin = cursor.after(size, self._sampler.num_samples), 0
