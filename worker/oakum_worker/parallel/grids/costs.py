"""Costs of a model's matrix products on grids of ranks: elements that ranks receive, time, memory.

A linear layer multiplies X (M x K) by W (K x N). On a grid with P ranks, each of which has 1/P of X, W and Y, the
ranks along one axis gather X, those along another gather W, and those along the third add up Y (section 3 of
arXiv:2105.14450). Over an axis of n ranks a rank receives (n-1)/P of the tensor, in forward as in backward. On a
cube that is (q-1)(MK + KN + MN)/q^3; what was gathered is gathered again for the backward pass unless it is kept.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oakum_worker.parallel.tensor.grids import Grid


@dataclass(frozen=True, slots=True)
class Product:
    """One linear layer's product, X (M x K) times W (K x N)."""

    rows: float
    """M for one sample, such as its tokens."""
    inner: int
    """K."""
    columns: int
    """N."""

    def flops(self, num_samples: float) -> float:
        """Number of multiplications of the forward product for `num_samples` samples; the backward pass has twice
        as many."""
        return num_samples * self.rows * self.inner * self.columns


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a rank receives for one product: a number of elements, in a number of messages that follow each
    other."""

    elements: float
    steps: int
    """Messages that follow each other."""


@dataclass(frozen=True)
class GridProfile:
    """Measurements from which a grid's step time and memory are predicted."""

    products: tuple[Product, ...]
    """In the order of execution."""
    speed: tuple[tuple[float, float], ...]
    """(multiplications, seconds) of single products that were timed, rising in both."""
    others_s: tuple[tuple[int, float], ...]
    """(samples, seconds) of a forward and a backward pass of a micro-batch without its products."""
    itemsize: int
    """Bytes of one element of the activations."""
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: float
    """Bytes kept from forward to backward for each sample."""

    def other_s(self, num_samples: int) -> float:
        """Seconds of forward and backward pass of `num_samples` samples apart from the products, in proportion to
        the nearest measured size."""
        size, seconds = min(self.others_s, key=lambda point: abs(math.log(point[0] / num_samples)))
        return seconds * num_samples / size


def product_s(speed: Sequence[tuple[float, float]], flops: float) -> float:
    """Seconds of a product with `flops` multiplications, interpolated between the timed products in `speed`, as in
    `GridProfile.speed`. A product smaller than all of them takes as long as the smallest, a larger one longer in
    proportion."""
    sizes = [size for size, _ in speed]
    if flops >= sizes[-1]:
        return speed[-1][1] * flops / sizes[-1]
    at = bisect.bisect_left(sizes, flops)
    if at == 0:
        return speed[0][1]
    (size0, s0), (size1, s1) = speed[at - 1], speed[at]
    return s0 + (s1 - s0) * (flops - size0) / (size1 - size0)


def traffic(grid: Grid, product: Product, number: int, num_samples: float, *, keep_gathered: bool) -> Traffic:
    """What a rank receives in a forward and a backward pass of `num_samples` samples for one product, the model's
    product number `number`. Without `keep_gathered` the backward pass gathers again."""
    size = grid.num_ranks
    rows = num_samples * product.rows
    x, w, y = rows * product.inner, product.inner * product.columns, rows * product.columns
    along_x, along_w, along_y = _lengths(grid, number)
    gathered = ((along_x - 1) * x + (along_w - 1) * w) / size
    summed = (along_y - 1) * y / size
    again = 0.0 if keep_gathered else gathered
    steps = 2 * (along_x + along_w + along_y - 3) + (0 if keep_gathered else along_x + along_w - 2)
    return Traffic(2 * (gathered + summed) + again, steps)


def held_elements(grid: Grid, product: Product, number: int, num_samples: float) -> tuple[float, float]:
    """(elements that a rank has at once while it computes a product, those of them that it gathered), for
    `num_samples` samples. `product` is the model's product number `number`, counted from 0."""
    along_x, along_w, along_y = _lengths(grid, number)
    rows = num_samples * product.rows
    gathered = (along_x * rows * product.inner + along_w * product.inner * product.columns) / grid.num_ranks
    return gathered + along_y * rows * product.columns / grid.num_ranks, gathered


def _lengths(grid: Grid, number: int) -> tuple[int, int, int]:
    """Number of ranks along three axes: over which X is gathered, over which W is gathered, and over which Y is
    added up."""
    lengths: Mapping[str, int] = grid.lengths  # type: ignore[assignment]
    if grid.kind == "2d":
        return lengths["j"], lengths["i"], 1
    if number % 2 == 0:
        return lengths["j"], lengths["i"], lengths["l"]
    return lengths["l"], lengths["i"], lengths["j"]


def rising(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points (size, seconds) in rising order of size, each size once, with seconds raised where a smaller size
    took longer."""
    made: list[tuple[float, float]] = []
    for size, seconds in sorted(points):
        if made and size <= made[-1][0]:
            continue
        made.append((size, max(seconds, made[-1][1] if made else 0.0)))
    return tuple(made)
