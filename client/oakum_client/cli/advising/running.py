"""What a running trainer's rates say of its mini-batch and its layout, and what they leave open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oakum_client.cli.advising.choice import in_nodes, in_samples, splits_layers
from oakum_client.cli.advising.nodes import NodesAdvice
from oakum_client.cli.units import rate
from oakum_worker.spec import TrainerSpec

_EXACT = 1e-6
"""Largest relative error of what is computed from a fit."""


@dataclass(frozen=True, slots=True)
class SizeRun:
    """What a rank did on a number of nodes."""

    nodes: int
    share: int
    """Samples of a rank's share of a step, the largest of all ranks'."""
    at_once: int | None
    """Samples that a rank computed at once; None where the layout decides that."""
    samples_per_s: float
    """Of one rank."""


@dataclass(frozen=True, slots=True)
class RunningAdvice:
    """What is known of a running trainer's mini-batch."""

    trainer: str
    sizes: tuple[SizeRun, ...]
    """The fewest nodes first; empty where the global batch was not always the same."""
    fits: int | None
    """The most samples at once that have fitted into a rank's memory; None where that is not known."""
    nodes: int
    """Number of nodes that `enough_samples` is for: the present one."""
    enough_samples: int
    """The fewest samples of a rank's share that make computing the asked part of a step, as overhead is on `nodes`
    nodes."""
    efficiency: float
    """The asked part."""
    is_measured_here: bool
    """Whether the model has been measured on this machine, too."""


def running_advice(
    trainer: str,
    spec: TrainerSpec,
    rates: Sequence[tuple[int, float, float]],
    nodes: NodesAdvice,
    present: int,
    *,
    is_measured_here: bool,
) -> RunningAdvice:
    """What (nodes, samples/s, seconds of measurement) say of the mini-batch of a trainer on `present` nodes.

    With s samples a rank computes for s T_C / B of a step and the rest is T_O, so s T_C / B >= E (s T_C / B + T_O)
    for an efficiency E gives s >= E / (1 - E) B T_O / T_C.
    """
    sizes = () if spec.batch_schedule or spec.adaptive_batch else tuple(_size_run(spec, n, r) for n, r, _ in rates)
    bounds = [size.at_once for size in sizes if size.at_once is not None]
    at = min(max(present, 1), nodes.largest)
    part = min(nodes.asked_efficiency, 0.99)
    enough = part / (1 - part) * nodes.global_batch * nodes.overhead_s(at) / nodes.costs.compute_s
    return RunningAdvice(
        trainer,
        tuple(sorted(sizes, key=lambda size: size.nodes)),
        max(bounds, default=None),
        at,
        max(1, math.ceil((1 - _EXACT) * enough / spec.ranks_per_node)),
        part,
        is_measured_here,
    )


def _size_run(spec: TrainerSpec, nodes: int, samples_per_s: float) -> SizeRun:
    ranks = nodes * spec.ranks_per_node
    share = math.ceil(spec.global_batch / ranks)
    at_once = None if splits_layers(spec) else min(spec.micro_batch or share, share)
    return SizeRun(nodes, share, at_once, samples_per_s / ranks)


def running_lines(advice: RunningAdvice) -> Iterable[str]:
    """Lines of text: what ranks have computed at once, how large a share pays, and what the rates leave open."""
    yield f"Mini-batch and layout, by what {advice.trainer} has measured"
    if advice.sizes:
        yield "  nodes   share of a rank   at once   samples/s of a rank"
        for size in advice.sizes:
            at_once = "layout's" if size.at_once is None else f"{size.at_once:,}"
            yield f"  {size.nodes:5,}{size.share:18,}{at_once:>10}{rate(size.samples_per_s):>22}"
    if advice.fits is not None:
        yield f"  up to {in_samples(advice.fits)} at once fit into a rank's memory: it has trained with them"
    yield (
        f"  on {in_nodes(advice.nodes)} a rank computes for {100 * advice.efficiency:g} % of a step or more with "
        f"a share of {in_samples(advice.enough_samples)},"
    )
    yield "  which a larger global batch or fewer nodes would give it; a larger batch is another training"
    if not advice.is_measured_here:
        yield "  not to be known from rates: memory, other samples at once, and other layouts; on a machine like"
        yield f"  its nodes, `oakum advise SPEC --trainer {advice.trainer}` measures these with the model"
