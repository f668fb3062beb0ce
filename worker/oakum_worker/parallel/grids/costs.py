"""Costs of a model's matrix products on grids of ranks: elements that ranks receive, time, memory.

A linear layer multiplies X (M x K) by W (K x N). On a grid with P ranks, each of which has 1/P of X, W and Y, the
ranks along one axis gather X, those along another gather W, and those along the third add up Y (section 3 of
arXiv:2105.14450). Over an axis of n ranks a rank receives (n-1)/P of the tensor, in forward as in backward. On a
cube that is (q-1)(MK + KN + MN)/q^3, on shards (n-1) KN/n, as of FSDP; what was gathered is gathered again for the
backward pass unless it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

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
    input_gradient: bool = True
    """Whether the backward pass computes the gradient of X, which the model's own input does not need."""

    @property
    def num_passes(self) -> int:
        """Number of products of this size in a forward and a backward pass: Y, the gradient of W, and that of
        X."""
        return 3 if self.input_gradient else 2

    def flops(self, num_samples: float) -> float:
        """Number of multiplications of the forward product for `num_samples` samples."""
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
    input_bytes: float = 0.0
    """Bytes of a batch for each sample; every rank of a grid has the whole batch."""

    def other_s(self, num_samples: int) -> float:
        """Seconds of forward and backward pass of `num_samples` samples apart from the products, in proportion to
        the nearest measured size."""
        size, seconds = min(self.others_s, key=lambda point: abs(math.log(point[0] / num_samples)))
        return seconds * num_samples / size

    def share_s(self, grid: Grid, num_samples: int) -> float:
        """Seconds of the same of a rank of a grid, which computes its share of the samples."""
        if grid.kind == "shards":
            return self.other_s(samples_of_rank(grid, num_samples))
        return shared_s(self.other_s(num_samples), fixed_s(self.others_s), grid.num_ranks)


def samples_of_rank(grid: Grid, num_samples: float) -> int:
    """The most samples of a micro-batch of which a rank of a grid computes something: on shards its own, else
    all."""
    return math.ceil(num_samples / grid.num_ranks) if grid.kind == "shards" else math.ceil(num_samples)


def flops_of_rank(grid: Grid, product: Product, num_samples: float) -> float:
    """Number of multiplications of a rank's part of a forward product."""
    if grid.kind == "shards":
        return product.flops(samples_of_rank(grid, num_samples))
    return product.flops(num_samples) / grid.num_ranks


def fixed_s(points: Sequence[tuple[float, float]]) -> float:
    """Seconds of a pass that do not shrink with its size, by a straight line through the two smallest of the
    points (size, seconds), which rise in size; 0 for one point."""
    if len(points) < 2:
        return 0.0
    (size0, s0), (size1, s1) = points[:2]
    return max(min(s0 - (s1 - s0) / (size1 - size0) * size0, s0, s1), 0.0)


def shared_s(seconds: float, fixed: float, num_ranks: int) -> float:
    """Seconds of a pass that ranks share equally, but for its `fixed` seconds, which each of them takes."""
    fixed = min(fixed, seconds)
    return fixed + (seconds - fixed) / num_ranks


def product_s(speed: Sequence[tuple[float, float]], flops: float) -> float:
    """Seconds of a product with `flops` multiplications, interpolated between the timed products in `speed`, as in
    `GridProfile.speed`. A product smaller than all of them takes as long as the smallest, a larger one longer in
    proportion."""
    sizes, seconds = zip(*speed, strict=True)
    return float(np.interp(flops, sizes, seconds)) * max(1.0, flops / sizes[-1])


def traffic(grid: Grid, product: Product, number: int, num_samples: float, *, keep_gathered: bool) -> Traffic:
    """What a rank receives in a forward and a backward pass of `num_samples` samples for one product, the model's
    product number `number`. Without `keep_gathered` the backward pass gathers again."""
    size = grid.num_ranks
    rows = num_samples * product.rows
    x, w, y = rows * product.inner, product.inner * product.columns, rows * product.columns
    others_x, others_w, others_y = (along - 1 for along in _lengths(grid, number))
    # X, W and Y as often as they are gathered or summed.
    times_x = 1 + product.input_gradient + (not keep_gathered)
    times_w = 2 + (product.input_gradient and not keep_gathered)
    elements = times_x * others_x * x + times_w * others_w * w + 2 * others_y * y
    return Traffic(elements / size, times_x * others_x + times_w * others_w + 2 * others_y)


@dataclass(frozen=True, slots=True)
class Held:
    """Numbers of elements that a rank holds for one product, beside the blocks of its weights and activations."""

    working: float
    """The most at one time while it computes the product, or its gradients."""
    kept: float
    """What it keeps from forward to backward of what it has gathered."""


def held_elements(grid: Grid, product: Product, number: int, num_samples: float, *, keep_gathered: bool) -> Held:
    """What a rank holds for one product of `num_samples` samples, the model's product number `number`.

    Partial sums are there twice while they are scattered: as they are sent, and as they arrive.
    """
    size = grid.num_ranks
    rows = num_samples * product.rows
    x, w, y = rows * product.inner / size, product.inner * product.columns / size, rows * product.columns / size
    along_x, along_w, along_y = _lengths(grid, number)
    gathered_x, gathered_w = (n * own if n > 1 else 0.0 for n, own in ((along_x, x), (along_w, w)))
    kept = gathered_x + gathered_w if keep_gathered else 0.0
    new_x, new_w = (0.0, 0.0) if keep_gathered else (gathered_x, gathered_w)
    forward = max(new_x + new_w + along_y * y, _scattering_elements(along_y, y))
    of_y = y + (along_y * y if along_y > 1 else 0.0)
    of_x = max(new_w + along_x * x, _scattering_elements(along_x, x)) if product.input_gradient else 0.0
    of_w = (x if product.input_gradient else 0.0) + max(new_x + along_w * w, _scattering_elements(along_w, w))
    return Held(max(forward, of_y + max(of_x, of_w)), kept)


def _scattering_elements(along: int, own: float) -> float:
    """Elements that a rank has at once while partial sums are scattered along so many ranks, of which each gets
    `own`."""
    return 2 * along * own if along > 1 else own


def _lengths(grid: Grid, number: int) -> tuple[int, int, int]:
    """Number of ranks along three axes: over which X is gathered, over which W is gathered, and over which Y is
    added up."""
    lengths: Mapping[str, int] = grid.lengths  # type: ignore[assignment]
    if grid.kind == "2d":
        return lengths["j"], lengths["i"], 1
    if number % 2 == 0:
        return lengths["j"], lengths["i"], lengths["l"]
    return lengths["l"], lengths["i"], lengths["j"]


def rising_points(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points (size, seconds) in rising order of size, each size once, with seconds raised where a smaller size
    took longer."""
    fastest = dict(sorted(points, reverse=True))
    sizes = sorted(fastest)
    return tuple(zip(sizes, accumulate((fastest[size] for size in sizes), max), strict=True))
