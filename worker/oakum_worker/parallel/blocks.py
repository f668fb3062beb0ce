"""Blocks of tensors: which elements of a whole tensor one holder has, and which of them two blocks have in common.

A block has a *span* for each dimension of the tensor, and contains the elements each of whose indices is in its
dimension's span. A span may have gaps: of the rows of a fused projection, a rank may hold some of the queries', of
the keys' and of the values'. In memory a block is one tensor, whose indices count through the spans.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Span = tuple[range, ...]
"""Indices of one dimension: ranges of step 1 that do not overlap, in rising order."""
Slices = tuple[slice, ...]
"""A slice for each dimension."""


class Overlap(NamedTuple):
    """The elements that two blocks have in common, as slices of the first and of the second block's memory."""

    first: Slices
    second: Slices


class Box(NamedTuple):
    """Elements of a block that are contiguous in each dimension of the whole tensor."""

    offsets: tuple[int, ...]
    """Smallest index in each dimension of the whole tensor."""
    sizes: tuple[int, ...]
    memory: Slices
    """The elements' slices in the block's memory."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements of a tensor, by the spans of its dimensions."""

    spans: tuple[Span, ...]

    @classmethod
    def of(cls, ranges: Sequence[range]) -> Block:
        """The block without gaps that has these ranges of indices."""
        return cls(tuple((range_,) for range_ in ranges))

    def __bool__(self) -> bool:
        """Whether the block contains any element."""
        return all(any(span) for span in self.spans)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block in memory."""
        return tuple(sum(map(len, span)) for span in self.spans)

    @property
    def num_elements(self) -> int:
        """Number of elements of the block."""
        return math.prod(self.shape)

    def share(self, index: int, count: int) -> Block:
        """Part `index` of this block when it is cut along the first dimension into `count` parts of even
        length."""
        first, *others = self.spans
        length = sum(map(len, first))
        start, stop = length * index // count, length * (index + 1) // count
        return Block((_cut(first, start, stop), *others))

    def boxes(self) -> Iterator[Box]:
        """Cut the block into as few boxes as possible and yield them; an empty block yields none."""
        dimensions = [[(range_, start) for range_, start in _placed(span) if range_] for span in self.spans]
        for ranges in itertools.product(*dimensions):
            yield Box(
                tuple(range_.start for range_, _ in ranges),
                tuple(len(range_) for range_, _ in ranges),
                tuple(slice(start, start + len(range_)) for range_, start in ranges),
            )

    def common(self, other: Block) -> Iterator[Overlap]:
        """The elements that this block (first) and `other` (second) both contain, as overlaps whose order depends
        on the two blocks alone; none where the blocks have nothing in common."""
        dimensions = []
        for span, others in zip(self.spans, other.spans, strict=True):
            pairs = list(_common(span, others))
            if not pairs:
                return
            dimensions.append(pairs)
        for slices in itertools.product(*dimensions):
            yield Overlap(tuple(first for first, _ in slices), tuple(second for _, second in slices))


def intersection(first: range, second: range) -> range:
    """The numbers that both ranges contain."""
    start = max(first.start, second.start)
    return range(start, max(start, min(first.stop, second.stop)))


def _placed(span: Span) -> Iterator[tuple[range, int]]:
    """Each range of the span, with the position of the range's first index in the block's memory."""
    start = 0
    for range_ in span:
        yield range_, start
        start += len(range_)


def _cut(span: Span, start: int, stop: int) -> Span:
    """The part of the span from its `start`-th index to before its `stop`-th, where indices are counted from 0
    across all ranges of the span."""
    parts = (range_[max(0, start - before) : max(0, stop - before)] for range_, before in _placed(span))
    return tuple(part for part in parts if part)


def _common(first: Span, second: Span) -> Iterator[tuple[slice, slice]]:
    """For each run of indices that both spans contain: its slice of positions within the first and within the
    second span."""
    for one, place in _placed(first):
        for other, other_place in _placed(second):
            if both := intersection(one, other):
                here, there = place + both.start - one.start, other_place + both.start - other.start
                yield slice(here, here + len(both)), slice(there, there + len(both))
