"""Advises on the number of nodes, and on how they sum their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oakum_solver.advice.exchange import Link, nearest_grid, num_servers, ring_s, torus_s
from oakum_solver.advice.pass_time import PassTime
from oakum_solver.advice.scaling import StepCosts, limit_by_ratio, limit_by_share
from oakum_solver.step_time import fit_step_time

_MOST_NODES = 4096
_BACKWARD = 2 / 3
"""Share of the compute that gradients can be exchanged behind: the backward pass, twice as long as the forward."""


@dataclass(frozen=True, slots=True)
class NodesAdvice:
    """How a trainer's speed depends on the number of nodes, by the lemma's two times T_C (compute) and T_O
    (overhead), and which number of nodes has the asked efficiency."""

    source: str
    """From what T_C and T_O were taken, as a sentence's end."""
    global_batch: int
    costs: StepCosts
    """T_C, and T_O as it is on `at_nodes` nodes."""
    at_nodes: int
    asked_efficiency: float
    lemma_nodes: int | None
    """The most nodes with the asked efficiency if T_O stays as it is; None if any number has it."""
    limit_by_share: float | None
    limit_by_ratio: float | None
    """The lemma's limits if T_O / T_C were taken for R, or as R'."""
    overheads_s: tuple[float, ...]
    """T_O on 1, 2, ... nodes."""
    most_nodes: int
    """The most nodes with the asked efficiency, with T_O as it grows with them."""
    rows: tuple[tuple[int, float, float, float], ...]
    """(nodes, samples/s, speed-up, efficiency), predicted."""
    measured: tuple[tuple[int, float], ...] = ()
    """(nodes, samples/s) that a trainer has measured."""

    @property
    def largest(self) -> int:
        """The largest number of nodes for which times were computed."""
        return len(self.overheads_s)

    def overhead_s(self, nodes: int) -> float:
        """T_O on so many nodes."""
        return self.overheads_s[min(nodes, self.largest) - 1]

    def step_s(self, nodes: int) -> float:
        """Seconds of a step of the global batch on `nodes` nodes."""
        return self.costs.compute_s / nodes + self.overhead_s(nodes)

    def rate(self, nodes: int) -> float:
        """Samples/s on so many nodes."""
        return self.global_batch / self.step_s(nodes)

    def efficiency(self, nodes: int) -> float:
        """The rate per node on `nodes` nodes, relative to the rate on one node."""
        return self.step_s(1) / (nodes * self.step_s(nodes))


def nodes_from_passes(
    times: PassTime,
    update_s: float,
    gradient_bytes: int,
    link: Link,
    *,
    global_batch: int,
    micro_batch: int,
    ranks_per_node: int,
    max_nodes: int,
    efficiency: float,
) -> NodesAdvice:
    """The advice computed from passes that were timed on this machine, and from the link's latency and
    bandwidth.

    T_C is the time that grows with the samples. T_O is the time that a pass and the optimizer's step take for
    any number of samples, plus on n nodes a ring all-reduce, of which nothing is assumed to be hidden. Beyond
    `max_nodes`, only numbers of nodes are considered whose ranks all have samples.
    """
    passes = math.ceil(global_batch / micro_batch)
    compute_s = (times.sample_s * global_batch + (passes - 1) * times.fixed_s) / ranks_per_node
    alone_s = times.fixed_s + update_s
    source = (
        f"passes timed here, the optimizer's step of {1e3 * update_s:.3g} ms, and a ring all-reduce of "
        f"{1e3 * ring_s(gradient_bytes, max_nodes * ranks_per_node, link):.3g} ms, not hidden,\n"
        f"  over a link of {1e6 * link.latency_s:g} us and {link.bandwidth_bytes_per_s / 1e9:g} GB/s, which is "
        "assumed (--latency-us, --bandwidth)"
    )
    overheads = [
        alone_s + ring_s(gradient_bytes, n * ranks_per_node, link)
        for n in range(1, max(min(global_batch // ranks_per_node, _MOST_NODES), max_nodes) + 1)
    ]
    return _advice(source, global_batch, compute_s, overheads, max_nodes, efficiency, ())


def nodes_from_layouts(
    rates: Sequence[tuple[int, float]], *, global_batch: int, max_nodes: int, efficiency: float
) -> NodesAdvice:
    """The advice computed from the predicted (nodes, samples/s) of the fastest layouts, of which there have to
    be two or more. No more than `max_nodes` nodes are considered."""
    weighted = [(n, rate, 1.0) for n, rate in rates]
    source = "the predicted rates of the fastest layouts, fitted by a / n + b + c log2(n)"
    return _advice_from_fit(weighted, source, (), global_batch, max_nodes, max_nodes, efficiency)


def nodes_from_rates(
    rates: Sequence[tuple[int, float, float]], *, global_batch: int, max_nodes: int, efficiency: float
) -> NodesAdvice:
    """The advice computed from (nodes, samples/s, seconds of measurement) of a running trainer, at two sizes or
    more.

    t(n) = a / n + b + c log2(n) is fitted to them; for the global batch T_C = a, and T_O = b + c log2(n) on n
    nodes.
    """
    source = "the rates that the trainer has measured, fitted by a / n + b + c log2(n)"
    measured = [(n, rate) for n, rate, _ in rates]
    largest = max(min(global_batch, _MOST_NODES), max_nodes)
    return _advice_from_fit(rates, source, measured, global_batch, max_nodes, largest, efficiency)


def _advice_from_fit(
    rates: Sequence[tuple[int, float, float]],
    source: str,
    measured: Sequence[tuple[int, float]],
    global_batch: int,
    max_nodes: int,
    largest: int,
    efficiency: float,
) -> NodesAdvice:
    nodes, samples_per_s, seconds = (np.array(column, dtype=np.float64) for column in zip(*rates, strict=True))
    fit = fit_step_time(nodes, samples_per_s, seconds)
    compute_s = global_batch * max(fit.compute, 1e-9 * (fit.constant or 1.0))
    overheads = [global_batch * (fit.constant + fit.communication * math.log2(n)) for n in range(1, largest + 1)]
    return _advice(source, global_batch, compute_s, overheads, max_nodes, efficiency, measured)


def _advice(
    source: str,
    global_batch: int,
    compute_s: float,
    overheads_s: Sequence[float],
    max_nodes: int,
    efficiency: float,
    measured: Sequence[tuple[int, float]],
) -> NodesAdvice:
    costs = StepCosts(compute_s, overheads_s[max_nodes - 1])
    steps = [compute_s / n + overhead for n, overhead in enumerate(overheads_s, start=1)]
    efficiencies = [steps[0] / (n * step) for n, step in enumerate(steps, start=1)]
    enough = [n for n, reached in enumerate(efficiencies, start=1) if reached >= efficiency]
    most = max(enough, default=1)
    doubled = (2**k for k in range(13) if 2**k <= max_nodes)
    listed = sorted({*range(1, min(max_nodes, 4) + 1), *doubled, max_nodes, most, *(n for n, _ in measured)})
    return NodesAdvice(
        source=source,
        global_batch=global_batch,
        costs=costs,
        at_nodes=max_nodes,
        asked_efficiency=efficiency,
        lemma_nodes=costs.most_nodes(efficiency),
        limit_by_share=limit_by_share(costs.ratio, efficiency),
        limit_by_ratio=limit_by_ratio(costs.ratio, efficiency),
        overheads_s=tuple(overheads_s),
        most_nodes=most,
        rows=tuple(
            (n, global_batch / steps[n - 1], n * efficiencies[n - 1], efficiencies[n - 1])
            for n in listed
            if n <= len(steps)
        ),
        measured=tuple(measured),
    )


@dataclass(frozen=True, slots=True)
class ExchangeAdvice:
    """How gradients are summed over a number of nodes."""

    nodes: int
    gradient_bytes: int
    compute_s: float
    """T_C of one node's share."""
    servers: int
    """N_ps: parameter servers whose traffic hides behind that."""
    ring_s: float
    torus_s: float
    grid: tuple[int, int]
    behind_s: float
    """The part of the compute behind which an all-reduce can hide."""

    @property
    def all_reduce(self) -> str:
        """`ring` or `torus`: the faster one, ring where they are as fast."""
        return "torus" if self.grid[1] > 1 and self.torus_s < self.ring_s else "ring"

    @property
    def hidden(self) -> bool:
        """Whether the faster all-reduce hides behind the backward pass."""
        return min(self.ring_s, self.torus_s) <= self.behind_s


def exchange_advice(gradient_bytes: int, nodes: int, compute_s: float, link: Link) -> ExchangeAdvice:
    """How long it takes `nodes` nodes to sum their gradients, by parameter servers, a ring and a torus;
    `compute_s` is T_C of the whole global batch."""
    row, column = nearest_grid(nodes)
    share_s = compute_s / nodes
    return ExchangeAdvice(
        nodes,
        gradient_bytes,
        share_s,
        num_servers(gradient_bytes, nodes, link.bandwidth_bytes_per_s, share_s),
        ring_s(gradient_bytes, nodes, link),
        torus_s(gradient_bytes, row, column, link),
        (row, column),
        _BACKWARD * share_s,
    )
