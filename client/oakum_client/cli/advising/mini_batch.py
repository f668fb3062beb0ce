"""The mini-batch that a rank computes at once, and the algorithms of its layers, within a rank's memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from oakum_solver.advice.layer_choosing import choose_algorithms
from oakum_solver.advice.layer_options import LayerChoice, LayerOption
from oakum_solver.advice.pass_time import PassTime, fit_pass_time

AS_BUILT = "as built"
_WORTH_IT = 0.98
"""An algorithm takes the place of the layer as built where its time, beside the layer's, is at most this."""
Facts = Mapping[str, Any]
"""What `python -m oakum_worker advise` has measured."""


@dataclass(frozen=True, slots=True)
class LayerAdvice:
    """The advised algorithm of a layer, or of several layers that are alike, with all options that were
    measured."""

    names: tuple[str, ...]
    kind: str
    algorithm: str
    options: tuple[LayerOption, ...]
    """All that were measured, at the advised mini-batch, for all these layers together; as built comes first."""
    skipped: tuple[tuple[str, str], ...]
    """(algorithm, why) of those that were not measured."""


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """What a rank would need and how fast it would train with one mini-batch size: with the task as it is, and
    with the fastest algorithms that fit."""

    samples: int
    """The mini-batch: samples that the rank computes at once."""
    peak_bytes: int
    """Of the task as it is; predicted where it was too much to be measured."""
    samples_per_s: float | None
    """Of the task as it is; None where it does not fit."""
    left_bytes: int
    """What layers may keep and use as workspace."""
    chosen_samples_per_s: float | None
    """Predicted with the fastest algorithms that fit; None where none do."""
    algorithms: tuple[str, ...]
    """By layer; empty where none fit."""
    by: tuple[str, ...]
    """The methods that found the algorithms."""


@dataclass(frozen=True, slots=True)
class MiniBatchAdvice:
    """All candidate mini-batches, and the fastest ones."""

    sizes: tuple[SizeAdvice, ...]
    best: SizeAdvice | None
    """The fastest of the task as it is; None where none fits."""
    best_chosen: SizeAdvice | None
    """The fastest with other algorithms; None where none fits."""
    layers: tuple[LayerAdvice, ...]
    pass_time: PassTime | None
    """Fitted to the task as it is."""
    uncertainty: float = 0.0
    """The share by which another size may be faster than `best`, for the noise of measuring."""
    shared: bool = True
    """Whether layers use one workspace in turn; else each has one of its own."""


def advise_mini_batch(facts: Facts, *, shared: bool = True) -> MiniBatchAdvice:
    """Compare mini-batches: for each measured size, and some larger ones, the speed of the task as it is and
    with the fastest algorithms that fit. Returns all sizes and the fastest ones. Layers use one workspace in turn
    if `shared`, else each has one of its own. Raises `MilpError` where the two methods that choose algorithms
    disagree."""
    measured = {size["samples"]: size for size in facts["sizes"]}
    times = fit_pass_time((m, size["seconds"]) for m, size in measured.items()) if measured else None
    rows = [_size_advice(facts, m, measured, times, shared=shared) for m in _candidates(facts, measured)]
    timed = [row for row in rows if row.samples_per_s is not None]
    best = max(timed, key=lambda row: (row.samples_per_s or 0.0, row.samples), default=None)
    chosen = [row for row in rows if row.chosen_samples_per_s is not None]
    best_chosen = max(chosen, key=lambda row: (row.chosen_samples_per_s or 0.0, row.samples), default=None)
    choice = best_chosen or best
    return MiniBatchAdvice(
        tuple(rows),
        best,
        best_chosen,
        _layer_advice(facts, choice) if choice is not None else (),
        times,
        facts["uncertainty"],
        shared,
    )


def step_rate(share: int, samples: int, seconds: float) -> float:
    """Samples/s of a share that is computed in mini-batches of `samples`, which take `seconds` each."""
    return share / (math.ceil(share / samples) * seconds)


def _candidates(facts: Facts, measured: Mapping[int, Any]) -> list[int]:
    """The mini-batch sizes to consider: those that were measured, and larger ones that may fit with other
    algorithms."""
    largest, share = max(measured, default=0), facts["share"]
    if not measured:
        return [facts["smallest"]]
    beyond = {share, min(2 * largest, share), facts["smallest"]}
    return sorted({*measured, *(size for size in beyond if size > largest)})


def _size_advice(
    facts: Facts, samples: int, measured: Mapping[int, Any], times: PassTime | None, *, shared: bool
) -> SizeAdvice:
    static = facts["weight_bytes"] + facts["gradient_bytes"] + facts["optimizer_bytes"]
    working = measured[samples]["working_bytes"] if samples in measured else _working_bytes(facts, samples)
    seconds = measured[samples]["seconds"] if samples in measured else (times.seconds(samples) if times else None)
    layers = [_without_small_gains(options) for _, options in _options(facts, samples)]
    built = [layer[0] for layer in layers]
    kept_bytes = sum(option.kept_bytes for option in built)
    buffer_bytes = max((option.buffer_bytes for option in built), default=0)
    left_bytes = facts["limit_bytes"] - static - max(working - kept_bytes - buffer_bytes, 0)
    solution = choose_algorithms(layers, left_bytes, shared=shared) if layers else None
    choice = None if solution is None else solution.choice
    rate = None
    if choice is not None and seconds is not None:
        rate = step_rate(facts["share"], samples, _seconds_with_choice(seconds, built, choice))
    return SizeAdvice(
        samples=samples,
        peak_bytes=static + working,
        samples_per_s=(
            step_rate(facts["share"], samples, measured[samples]["seconds"]) if samples in measured else None
        ),
        left_bytes=left_bytes,
        chosen_samples_per_s=rate,
        algorithms=(
            ()
            if choice is None
            else tuple(layer[index].algorithm for layer, index in zip(layers, choice.options, strict=True))
        ),
        by=() if solution is None else solution.by,
    )


def _without_small_gains(options: Sequence[LayerOption]) -> list[LayerOption]:
    """The options, where those that are hardly faster than the layer as built count as no faster."""
    built = options[0].seconds
    return [
        replace(option, seconds=built) if _WORTH_IT * built < option.seconds < built else option
        for option in options
    ]


def _seconds_with_choice(seconds: float, built: Sequence[LayerOption], choice: LayerChoice) -> float:
    """Seconds of a pass with the chosen algorithms. `seconds` is the pass as it is; of that, layers are assumed
    to take no more than they took when timed alone (`built`)."""
    alone = sum(layer.seconds for layer in built)
    part = min(alone, seconds)
    return seconds - part + part * choice.seconds / alone if alone > 0 else seconds


def _working_bytes(facts: Facts, samples: int) -> int:
    """Working memory in bytes of a mini-batch of this size, by a straight line through the smallest and the
    largest measured size."""
    points = {facts["smallest"]: facts["smallest_working_bytes"]}
    points |= {size["samples"]: size["working_bytes"] for size in facts["sizes"]}
    (low, before), (high, after) = min(points.items()), max(points.items())
    sample_bytes = (after - before) / (high - low) if high > low else after / high
    return int(after + sample_bytes * (samples - high))


def _options(facts: Facts, samples: int) -> list[tuple[Facts, list[LayerOption]]]:
    """(measurements of a layer, the layer's options for a mini-batch of `samples`), for each layer. Seconds and
    bytes follow from straight lines through the sizes that were measured.

    Layers that are alike have one entry and get one algorithm.
    """
    entries: dict[str, list[Any]] = {}
    for layer in facts["layers"]:
        entries.setdefault(layer["names"][0], []).append(layer)
    layers = []
    for sizes in entries.values():
        *_, last = sizes
        trials = [{trial["algorithm"]: trial for trial in layer["trials"]} for layer in sizes]
        options = [
            _option(
                name,
                len(last["names"]),
                samples,
                [(layer["samples"], by[name]) for layer, by in zip(sizes, trials, strict=True)],
            )
            for name in trials[-1]
            if all(name in by for by in trials)
        ]
        layers.append((last, options))
    return layers


def _option(name: str, count: int, samples: int, points: Sequence[tuple[int, Any]]) -> LayerOption:
    def at(key: str) -> float:
        low, high = points[0], points[-1]
        if low[0] == high[0]:
            return float(high[1][key]) * samples / high[0]
        slope = (high[1][key] - low[1][key]) / (high[0] - low[0])
        return max(float(low[1][key] + slope * (samples - low[0])), 0.0)

    line = fit_pass_time((m, trial["seconds"]) for m, trial in points)
    low = points[0][0]
    # A line through two sizes says nothing of smaller ones: there algorithms keep the ratio of the smaller size.
    seconds = line.seconds(samples) if samples >= low else line.seconds(low) * samples / low
    return LayerOption(name, count * seconds, round(count * at("kept_bytes")), round(at("buffer_bytes")))


def _layer_advice(facts: Facts, size: SizeAdvice) -> tuple[LayerAdvice, ...]:
    rows = _options(facts, size.samples)
    chosen = size.algorithms or tuple(AS_BUILT for _ in rows)
    return tuple(
        LayerAdvice(
            tuple(layer["names"]),
            layer["kind"],
            algorithm,
            tuple(options),
            tuple((trial["algorithm"], trial["why"]) for trial in layer["skipped"]),
        )
        for (layer, options), algorithm in zip(rows, chosen, strict=True)
    )
