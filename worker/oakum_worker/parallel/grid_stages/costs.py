"""Predicts what a chain's layers cost on a grid, from what they cost on one rank.

A rank of a grid of P ranks computes 1/P of each layer and has 1/P of its weights and activations. Beside that it
receives, for each product of the layer, the elements that `grids.costs.traffic` counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from oakum_worker.parallel.grids.costs import Product, traffic
from oakum_worker.parallel.pipeline.costs import LayerCost, LinkCosts, ModelProfile, Tied
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
    made = []
    for layer, products in zip(profile.layers, layers, strict=True):
        waits = [_waits_s(products, grid, m, links, keep_gathered=keep_gathered) for m in profile.micro_batches]
        pairs = [(f, b, w) for f, b, w in zip(layer.forward_s, layer.backward_s, waits, strict=True)]
        made.append(
            replace(
                _divided(layer, size),
                forward_s=tuple(forward / size + wait[0] for forward, _, wait in pairs),
                backward_s=tuple(backward / size + wait[1] for _, backward, wait in pairs),
            )
        )
    tied = tuple(
        Tied(one.layers, one.parameter_bytes // size, one.optimizer_bytes // size) for one in profile.tied
    )
    return replace(profile, layers=tuple(made), tied=tied)


def _divided(layer: LayerCost, size: int) -> LayerCost:
    return replace(
        layer,
        parameter_bytes=-(-layer.parameter_bytes // size),
        optimizer_bytes=-(-layer.optimizer_bytes // size),
        activation_bytes=-(-layer.activation_bytes // size),
        output_bytes=-(-layer.output_bytes // size),
    )


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
