"""Predicts what a chain's layers cost on a grid, from what they cost on one rank.

A rank of a grid of P ranks has 1/P of each layer's weights and activations, and computes 1/P of it, but for what a
pass takes whatever its size; on shards it computes the samples that fall to it. Beside that it receives, for each
product of the layer, the elements that `grids.costs.traffic` counts, and holds those that
`grids.costs.held_elements` counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from oakum_worker.parallel.grids.costs import Product, fixed_s, held_elements, samples_of_rank, shared_s, traffic
from oakum_worker.parallel.link_costs import LinkCosts
from oakum_worker.parallel.pipeline.costs import LayerCost, ModelProfile, Tied, seconds
from oakum_worker.parallel.tensor.grids import Grid


@dataclass(frozen=True)
class LayerProducts:
    """The products of one layer, and the number that the first of them has in the model."""

    first: int
    products: tuple[Product, ...]
    itemsize: int
    """Bytes of one element."""


def on_grid(
    profile: ModelProfile,
    layers: Sequence[LayerProducts],
    grid: Grid,
    links: LinkCosts,
    *,
    keep_gathered: bool,
) -> ModelProfile:
    """The costs of the layers for each rank of `grid`; `profile` has those of a rank alone."""
    size = grid.num_ranks
    if size == 1:
        return profile
    divided = []
    for layer, products in zip(profile.layers, layers, strict=True):
        waits = [_waits_s(products, grid, m, links, keep_gathered=keep_gathered) for m in profile.micro_batches]
        forward_s, backward_s = (
            _shares_s(profile.micro_batches, times, grid) for times in (layer.forward_s, layer.backward_s)
        )
        fixed, of_sample = _held_bytes(products, grid, profile.micro_batches[-1], keep_gathered=keep_gathered)
        divided.append(
            replace(
                _divide(layer, size),
                gathered_bytes=fixed,
                gathered_sample_bytes=of_sample,
                forward_s=tuple(s + wait[0] for s, wait in zip(forward_s, waits, strict=True)),
                backward_s=tuple(s + wait[1] for s, wait in zip(backward_s, waits, strict=True)),
            )
        )
    tied = tuple(
        Tied(one.layers, one.parameter_bytes // size, one.optimizer_bytes // size) for one in profile.tied
    )
    return replace(profile, layers=tuple(divided), tied=tied)


def _divide(layer: LayerCost, size: int) -> LayerCost:
    return replace(
        layer,
        parameter_bytes=-(-layer.parameter_bytes // size),
        optimizer_bytes=-(-layer.optimizer_bytes // size),
        activation_bytes=-(-layer.activation_bytes // size),
        output_bytes=-(-layer.output_bytes // size),
    )


def _shares_s(sizes: Sequence[int], per_sample_s: Sequence[float], grid: Grid) -> list[float]:
    """Seconds for each sample of a rank's share of a layer's pass, by micro-batch size."""
    passes = [(size, size * each_s) for size, each_s in zip(sizes, per_sample_s, strict=True)]
    if grid.kind == "shards":
        return [seconds(sizes, per_sample_s, samples_of_rank(grid, size)) / size for size in sizes]
    fixed = fixed_s(passes)
    return [shared_s(whole_s, fixed, grid.num_ranks) / size for size, whole_s in passes]


def _waits_s(
    layer: LayerProducts, grid: Grid, num_samples: int, links: LinkCosts, *, keep_gathered: bool
) -> tuple[float, float]:
    """Seconds for each sample that a rank waits for others' elements in a layer's (forward, backward) pass."""
    forward_s = backward_s = 0.0
    for number, product in enumerate(layer.products, start=layer.first):
        kept = traffic(grid, product, number, num_samples, keep_gathered=True)
        whole = traffic(grid, product, number, num_samples, keep_gathered=keep_gathered)
        there_s = links.transfer_s(kept.elements / 2 * layer.itemsize) + kept.steps / 2 * links.latency_s
        both_s = links.transfer_s(whole.elements * layer.itemsize) + whole.steps * links.latency_s
        forward_s += there_s
        backward_s += both_s - there_s
    return forward_s / num_samples, backward_s / num_samples


def _held_bytes(layer: LayerProducts, grid: Grid, most_samples: int, *, keep_gathered: bool) -> tuple[int, int]:
    """(bytes whatever the samples, bytes for each sample) that a rank holds while it computes a layer; no less
    than it needs for micro-batches of up to `most_samples` samples."""

    def held(number: int, product: Product, num_samples: float) -> float:
        return held_elements(grid, product, number, num_samples, keep_gathered=keep_gathered).working

    fixed = of_sample = 0.0
    for number, product in enumerate(layer.products, start=layer.first):
        none, most = held(number, product, 0), held(number, product, most_samples)
        fixed, of_sample = max(fixed, none), max(of_sample, (most - none) / most_samples)
    return math.ceil(fixed * layer.itemsize), math.ceil(of_sample * layer.itemsize)
