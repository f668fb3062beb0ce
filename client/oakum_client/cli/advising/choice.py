"""Chooses which fields of the spec to change, and what would make a model fit into memory that does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oakum_client.cli.advising.mini_batch import Facts, MiniBatchAdvice
from oakum_client.cli.advising.nodes import NodesAdvice
from oakum_solver.problem import Curve
from oakum_worker.spec import TrainerSpec

_WORTH_IT = 1.2
"""Times as fast as now, from which on a change of precision is worth a mention."""
_HALF = 0.5
_AS_GOOD = 0.02
"""What the spec says stays where the advice is better by no more than this share: measuring is not surer."""


@dataclass(frozen=True, slots=True)
class SpecAdvice:
    """The fields of a spec that Oakum would change, and what is expected of the spec with them."""

    fields: Mapping[str, Any]
    """Field of the spec -> advised value; only those that differ from the spec."""
    reasons: Mapping[str, str]
    """Field -> why, as a comment."""
    layout: str
    recompute: tuple[str, ...]
    """Names of the layers to compute again for the backward pass."""
    precision: str
    samples_per_s: float | None
    """On `max_nodes` nodes."""
    max_nodes: int
    """The advised one, or the spec's."""
    mini_batch: int | None
    """Samples at once; None where none was measured."""
    remarks: tuple[str, ...] = field(default=())


def advise_spec(
    spec: TrainerSpec, facts: Facts | None, batch: MiniBatchAdvice | None, nodes: NodesAdvice | None
) -> SpecAdvice:
    """The fields to change. `facts` and `batch` are None where nothing was measured on this machine."""
    fields: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    too_small = ""
    most = spec.max_nodes
    if nodes is not None:
        largest = max(1, min([spec.global_batch, *(n for _, n in spec.batch_schedule)]) // spec.ranks_per_node)
        most = max(spec.min_nodes, min(nodes.most_nodes, largest))
        most = max((size for size in spec.listed_sizes if size <= most), default=most)
        if _suffices(nodes, spec.max_nodes, most):
            most = spec.max_nodes
        if most != spec.max_nodes:
            fields["max_nodes"] = most
            reasons["max_nodes"] = (
                f"{100 * nodes.efficiency(most):.0f} % efficient on {in_nodes(most)}: "
                f"T_C {1e3 * nodes.costs.compute_s:.3g} ms, T_O {1e3 * nodes.overhead_s(most):.3g} ms"
            )
        if not spec.curve and not spec.curves_by_type and most > 1:
            sizes = sorted({1, 2, *(n for n, *_ in nodes.rows if n <= most), most})
            points = [[n, float(f"{nodes.rate(n):.4g}")] for n in sizes]
            rising = [
                point for before, point in zip([[0, 0.0], *points], points, strict=False) if point[1] > before[1]
            ]
            fields["curve"] = rising
            reasons["curve"] = "predicted samples/s; what is measured takes its place"
    if facts is not None and not facts["largest"] and spec.parallel.data == "sharded":
        needed = _shards(facts)
        least = None if needed is None else _least_nodes(spec, -(-needed // spec.ranks_per_node))
        if needed is not None and least is None:
            too_small = f"sizes: none of them has the {needed} ranks that hold the model's state in parts that fit"
        elif needed is not None and least is not None and least > spec.min_nodes:
            fields["min_nodes"] = least
            reasons["min_nodes"] = f"{needed} ranks hold weights, gradients and optimizer in parts that fit"
            if fields["min_nodes"] > most:
                fields["max_nodes"] = most = fields["min_nodes"]
                reasons["max_nodes"] = "no fewer than min_nodes"
    if batch is not None and batch.best is not None and facts is not None:
        best = batch.best.samples
        present = spec.micro_batch or facts["share"]
        if best != present and not _trains_as_fast(batch, present) and not splits_layers(spec):
            fields["micro_batch"] = best
            reasons["micro_batch"] = (
                f"{batch.best.samples_per_s:,.0f} samples/s in {mib(batch.best.peak_bytes)} of "
                f"{mib(facts['limit_bytes'])}"
            )
    again = (
        ()
        if batch is None
        else tuple(name for layer in batch.layers if layer.algorithm == "recompute" for name in layer.names)
    )
    precision, remarks = _precision(spec, facts)
    remarks = (*remarks, *([too_small] if too_small else []))
    # The micro-batches of a split model follow from its layout.
    fits = not splits_layers(spec) and facts is not None and facts["largest"] > 0
    return SpecAdvice(
        fields,
        reasons,
        _layout(spec, facts, most),
        again,
        precision,
        None if nodes is None else nodes.rate(most),
        most,
        fields.get("micro_batch", spec.micro_batch or facts["share"]) if facts and fits else None,
        remarks,
    )


def _least_nodes(spec: TrainerSpec, needed: int) -> int | None:
    """The fewest nodes, `needed` or more, that the trainer can be given; None where its sizes end before."""
    return next((size for size in spec.listed_sizes if size >= needed), None if spec.listed_sizes else needed)


def _suffices(nodes: NodesAdvice, present: int, most: int) -> bool:
    """Whether `present` nodes are the advised `most`, but for what measuring leaves unsure."""
    target = nodes.asked_efficiency
    if present > most:
        return present <= nodes.largest and nodes.efficiency(present) >= (1 - _AS_GOOD) * target
    return present == most or nodes.efficiency(present + 1) <= (1 + _AS_GOOD) * target


def _trains_as_fast(batch: MiniBatchAdvice, present: int) -> bool:
    """Whether mini-batches of `present` samples fit and are hardly slower than the fastest."""
    rate = next((row.samples_per_s for row in batch.sizes if row.samples == present), None)
    assert batch.best is not None
    assert batch.best.samples_per_s is not None
    return rate is not None and rate >= (1 - _AS_GOOD) * batch.best.samples_per_s


def splits_layers(spec: TrainerSpec) -> bool:
    """Whether the spec spreads a replica over ranks, so that passes of the whole model say little."""
    return spec.parallel.pipeline is not None or spec.parallel.tensor is not None


def advised(spec: TrainerSpec, advice: SpecAdvice) -> TrainerSpec:
    """The spec with the advised fields. Raises pydantic's `ValidationError` where they do not go together."""
    return TrainerSpec.model_validate(spec.model_dump(exclude_unset=True) | dict(advice.fields))


def _precision(spec: TrainerSpec, facts: Facts | None) -> tuple[str, tuple[str, ...]]:
    rates = {} if facts is None else facts["precisions"]
    if not rates or spec.precision not in rates:
        return spec.precision, ()
    best = max(rates, key=lambda name: rates[name])
    gain = rates[best] / rates[spec.precision]
    if best == spec.precision or gain < _WORTH_IT:
        return spec.precision, ()
    return best, (
        f"precision {best} is {gain:.1f} times as fast as {spec.precision} here, and rounds more coarsely: "
        f"write `precision: {best}` yourself if the loss bears it",
    )


def _layout(spec: TrainerSpec, facts: Facts | None, nodes: int) -> str:
    if facts is None:
        return f"as it is, {_kind(spec)}: rates of one layout do not tell of others"
    layouts = [layout for layout in facts["layouts"] if layout["nodes"] <= nodes and layout["fits"]]
    if not layouts:
        return "replicated: each rank has the whole model" if facts["largest"] else "none fits"
    best = max(layouts, key=lambda layout: layout["samples_per_s"])
    on = f"micro-batches of {in_samples(best['micro_batch'])}, on {in_nodes(best['nodes'])}"
    again = ", layers computed again for the backward pass" if best.get("recompute") else ""
    return f"{_shape(best)}, {on}{again}"


def _kind(spec: TrainerSpec) -> str:
    """How the spec spreads the model over ranks."""
    parallel = spec.parallel
    if parallel.pipeline is not None:
        return "a pipeline" if parallel.tensor is None else "a pipeline of grids"
    if parallel.tensor is not None:
        return "grids of ranks"
    return "replicated" if parallel.data == "auto" else parallel.data


def _shape(layout: Facts) -> str:
    """What the replicas of a layout consist of: stages of a pipeline, a grid of ranks, or a rank each."""
    replicas = "1 replica" if layout["replicas"] == 1 else f"{layout['replicas']:,} replicas"
    if layout.get("stages", 1) > 1:
        return f"{replicas} of {layout['stages']} stages, schedule {layout['schedule']}"
    if layout.get("grid", "none") != "none":
        return f"{replicas}, each a {layout['grid']}"
    return "replicated: each rank has the whole model"


def what_would_fit(facts: Facts, batch: MiniBatchAdvice) -> list[str]:
    """Texts that say what a user can do about a model of which not even the smallest mini-batch fits; empty if
    one fits."""
    if facts["largest"]:
        return []
    static = facts["weight_bytes"] + facts["gradient_bytes"] + facts["optimizer_bytes"]
    working, limit, least = facts["smallest_working_bytes"], facts["limit_bytes"], facts["smallest"]
    ways = [f"{mib(static + working)} of memory for each rank: then it computes {in_samples(least)} at once"]
    if batch.best_chosen is not None:
        layers = [
            f"{layer.names[0] or 'the model'} by {layer.algorithm}"
            for layer in batch.layers
            if layer.algorithm != "as built"
        ]
        ways.append(
            f"other algorithms for its layers, for {in_samples(batch.best_chosen.samples)} at once: "
            f"{', '.join(layers)}"
        )
    if (shards := _shards(facts)) is not None:
        ways.append(
            f"`parallel: {{data: sharded}}` on {shards} ranks or more, or for a model that goes onto grids "
            f"`parallel: {{tensor: {{shards: {shards}}}}}`: each holds 1/{shards} of weights, gradients and "
            "optimizer state, and computes whole samples"
        )
    stages = math.ceil((static + working) / limit)
    ways.append(
        f"`parallel: {{pipeline: {{}}}}` with {stages} stages or more, for a task that names its layers, if these "
        "are about equally large"
    )
    if (side := _cube(facts)) is not None:
        ways.append(
            f"`parallel: {{tensor: {{cube: {side}}}}}` on {side**3} ranks or more: each holds 1/{side**3} of "
            "large weights and of layers' outputs"
        )
    if facts["optimizer_bytes"] and static - facts["optimizer_bytes"] + working <= limit:
        ways.append("the optimizer's state in the host's memory (oakum_worker.parallel.offload)")
    ways.append("a smaller model, or an optimizer that keeps less for each weight")
    return ways


def _cube(facts: Facts) -> int | None:
    """The side of the smallest cube of ranks whose blocks fit, of 2, 3 and 4; None if none is large enough."""
    static = facts["weight_bytes"] + facts["gradient_bytes"] + facts["optimizer_bytes"]
    sample_bytes = facts["smallest_working_bytes"] / facts["smallest"]
    sides = range(2, 5)  # a cube of side q computes q samples or more
    return next(
        (q for q in sides if (static + q * facts["smallest"] * sample_bytes) / q**3 <= facts["limit_bytes"]), None
    )


def _shards(facts: Facts) -> int | None:
    """The fewest ranks that hold equal parts of the state and the smallest mini-batch; None if none are enough."""
    static = facts["weight_bytes"] + facts["gradient_bytes"] + facts["optimizer_bytes"]
    room = facts["limit_bytes"] - facts["smallest_working_bytes"]
    return math.ceil(static / room) if room > 0 else None


def bounds_warning(spec: TrainerSpec) -> str | None:
    """A warning if, by the spec's own curve, a node does less than half of its best rate at `max_nodes`; None
    otherwise, and for a spec without a curve or with a fixed size."""
    if not spec.curve or spec.max_nodes == spec.min_nodes:
        return None
    curve = Curve(spec.curve)
    alone = max(rate / nodes for nodes, rate in spec.curve)
    efficiency = curve.rate(spec.max_nodes) / spec.max_nodes / alone
    if efficiency >= _HALF:
        return None
    sizes = spec.allowed_sizes or range(spec.min_nodes, spec.max_nodes)
    fair = max((n for n in sizes if curve.rate(n) / n >= _HALF * alone), default=spec.min_nodes)
    return (
        f"max_nodes is {spec.max_nodes}, where by the spec's curve each node does {100 * efficiency:.0f} % of "
        f"what it does at best: up to {fair} nodes it is 50 % or more; `oakum advise` says what pays"
    )


def in_samples(number: int) -> str:
    """So many samples, in words."""
    return "1 sample" if number == 1 else f"{number:,} samples"


def in_nodes(number: int) -> str:
    """So many nodes, in words."""
    return "1 node" if number == 1 else f"{number:,} nodes"


def mib(number: float) -> str:
    """Bytes for people."""
    if number >= 2**30:
        return f"{number / 2**30:,.3g} GiB"
    return f"{number / 2**20:,.3g} MiB" if number >= 2**20 else f"{number / 2**10:,.3g} KiB"
