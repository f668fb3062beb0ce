"""Costs of a pipeline in time and memory: of a model's layers, and of stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oakum_worker.errors import ScheduleError
from oakum_worker.parallel.link_costs import LinkCosts


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Measured costs of one layer. Times are seconds per sample, one for each micro-batch size of the profile."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: int = 0
    """Bytes of its weights; its gradients take as many again."""
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """Bytes kept from forward to backward for each sample."""
    output_bytes: int = 0
    """Bytes per sample passed to the next layer; the gradient that comes back is as large."""
    split: tuple[float, float] | None = (0.5, 0.5)
    """Times of the two parts of a split backward pass (gradients of the inputs; of the weights), relative to a
    whole backward pass. A linear layer has two products of equal size, hence the default. None if backward cannot
    be split."""
    gathered_bytes: int = 0
    """Bytes beside those that a rank of a grid holds only while it computes the layer, whatever the samples."""
    gathered_sample_bytes: int = 0
    """As many more for each sample."""


@dataclass(frozen=True, slots=True)
class Tied:
    """Weights shared by several layers. `LayerCost.parameter_bytes` of each of these layers includes them."""

    layers: tuple[int, ...]
    parameter_bytes: int
    optimizer_bytes: int = 0


@dataclass(frozen=True)
class ModelProfile:
    """Costs of a chain of layers, measured at several micro-batch sizes."""

    micro_batches: tuple[int, ...]
    """The measured micro-batch sizes in samples, rising."""
    layers: tuple[LayerCost, ...]
    input_bytes: int = 0
    """Bytes of the model's input for each sample."""
    smallest: int = 1
    """Smallest possible micro-batch in samples."""
    tied: tuple[Tied, ...] = ()

    @property
    def can_split(self) -> bool:
        """Whether the backward pass of every layer can be split into a part for the inputs and a part for the
        weights."""
        return all(layer.split is not None for layer in self.layers)

    def __post_init__(self) -> None:
        sizes = self.micro_batches
        if not sizes or sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
            raise ScheduleError(f"a profile needs micro-batch sizes in rising order from 1 on, not {list(sizes)}")
        if not self.layers:
            raise ScheduleError("a profile needs at least one layer: give the cost of each")
        for number, layer in enumerate(self.layers):
            for times in (layer.forward_s, layer.backward_s):
                if len(times) != len(sizes) or not all(math.isfinite(time) and time >= 0 for time in times):
                    raise ScheduleError(
                        f"layer {number} needs {len(sizes)} times, one for each micro-batch size, finite and not "
                        f"negative, not {list(times)}"
                    )


@dataclass(frozen=True)
class StageCosts:
    """Costs of each stage for micro-batches of one size. Each field has one element per stage."""

    forward_s: tuple[float, ...]
    """Seconds of a forward pass of one micro-batch."""
    doubled_s: tuple[float, ...]
    """Seconds of a forward pass of two micro-batches at once."""
    backward_s: tuple[float, ...]
    """Seconds of a backward pass of one micro-batch; includes a forward pass if activations are recomputed."""
    split_s: tuple[tuple[float, float], ...]
    """Seconds of the two parts of a split backward pass: gradients of the stage's inputs, and of its weights."""
    transfer_s: tuple[float, ...]
    """Seconds to transfer one micro-batch from a stage to the next; one element fewer than stages."""
    state_bytes: tuple[int, ...]
    """Bytes of weights, gradients and optimizer state."""
    parameter_bytes: tuple[int, ...]
    """Bytes of weights that no other stage has."""
    tied_bytes: tuple[tuple[tuple[int, ...], int], ...]
    """(stages, bytes) of weights that several stages share and whose gradients these stages sum."""
    held_bytes: tuple[int, ...]
    """Bytes kept from forward to backward for one micro-batch: activations, or the input if they are
    recomputed."""
    working_bytes: tuple[int, ...]
    """Additional bytes while a micro-batch is computed: its activations if they are recomputed, and what a rank of
    a grid gathers for the layer for which that is most."""


def stage_costs(
    profile: ModelProfile, cuts: Sequence[range], micro_batch: int, links: LinkCosts, *, recompute: bool = False
) -> StageCosts:
    """Costs of the stages that have the layers `cuts`, with micro-batches of `micro_batch` samples."""
    forward = [_stage_s(profile, cut, micro_batch, backward=False) for cut in cuts]
    backward = [_stage_s(profile, cut, micro_batch, backward=True) for cut in cuts]
    layers = [[profile.layers[number] for number in cut] for cut in cuts]
    activations = [micro_batch * sum(layer.activation_bytes for layer in stage) for stage in layers]
    gathered = [
        max(one.gathered_bytes + micro_batch * one.gathered_sample_bytes for one in stage) for stage in layers
    ]
    outputs = [micro_batch * stage[-1].output_bytes for stage in layers]
    inputs = [micro_batch * profile.input_bytes, *outputs[:-1]]
    state_bytes, parameter_bytes, tied_bytes = _weights(profile, cuts)
    return StageCosts(
        forward_s=tuple(forward),
        doubled_s=tuple(_stage_s(profile, cut, 2 * micro_batch, backward=False) for cut in cuts),
        backward_s=tuple(b + f * recompute for f, b in zip(forward, backward, strict=True)),
        split_s=tuple(
            _split_s(profile, cut, micro_batch, f * recompute) for cut, f in zip(cuts, forward, strict=True)
        ),
        transfer_s=tuple(links.transfer_s(size) for size in outputs),
        state_bytes=tuple(state_bytes),
        parameter_bytes=tuple(parameter_bytes),
        tied_bytes=tuple(tied_bytes),
        held_bytes=tuple(inputs if recompute else activations),
        working_bytes=tuple(a * recompute + g for a, g in zip(activations, gathered, strict=True)),
    )


def _weights(
    profile: ModelProfile, cuts: Sequence[range]
) -> tuple[list[int], list[int], list[tuple[tuple[int, ...], int]]]:
    """`state_bytes`, `parameter_bytes` and `tied_bytes` of `StageCosts`; weights shared within a stage count
    once."""
    layers = [[profile.layers[number] for number in cut] for cut in cuts]
    state_bytes = [sum(2 * layer.parameter_bytes + layer.optimizer_bytes for layer in stage) for stage in layers]
    own_bytes = [sum(layer.parameter_bytes for layer in stage) for stage in layers]
    tied_bytes = []
    for tied in profile.tied:
        uses = [sum(layer in cut for layer in tied.layers) for cut in cuts]
        users = tuple(stage for stage, times in enumerate(uses) if times)
        for stage in users:
            state_bytes[stage] -= (uses[stage] - 1) * (2 * tied.parameter_bytes + tied.optimizer_bytes)
            own_bytes[stage] -= (uses[stage] - (len(users) == 1)) * tied.parameter_bytes
        if len(users) > 1:
            tied_bytes.append((users, tied.parameter_bytes))
    return state_bytes, own_bytes, tied_bytes


def layer_costs_s(profile: ModelProfile, micro_batch: int, *, recompute: bool = False) -> list[float]:
    """Seconds of each layer's forward plus backward pass of one micro-batch, by which stages are balanced."""
    sizes = profile.micro_batches
    return [
        seconds(sizes, layer.forward_s, micro_batch) * (1 + recompute)
        + seconds(sizes, layer.backward_s, micro_batch)
        for layer in profile.layers
    ]


def seconds(sizes: Sequence[int], per_sample_s: Sequence[float], micro_batch: int) -> float:
    """Seconds of one layer's pass of a micro-batch. `per_sample_s[i]` are the measured seconds per sample at size
    `sizes[i]`; times are interpolated linearly between sizes, and beyond them the nearest size's seconds per
    sample hold."""
    if micro_batch <= sizes[0]:
        return micro_batch * per_sample_s[0]
    for (size, rate), (larger, larger_rate) in pairwise(zip(sizes, per_sample_s, strict=True)):
        if micro_batch <= larger:
            part = (micro_batch - size) / (larger - size)
            return (1 - part) * size * rate + part * larger * larger_rate
    return micro_batch * per_sample_s[-1]


def _stage_s(profile: ModelProfile, cut: range, micro_batch: int, *, backward: bool) -> float:
    layers = [profile.layers[number] for number in cut]
    return sum(
        seconds(profile.micro_batches, layer.backward_s if backward else layer.forward_s, micro_batch)
        for layer in layers
    )


def _split_s(profile: ModelProfile, cut: range, micro_batch: int, again_s: float) -> tuple[float, float]:
    """Seconds of the two parts of a split backward pass; the first includes `again_s` of recomputation.

    The first stage needs no gradients of the model's inputs. It does everything in its second part, and in its
    first layer with weights computes the weights' gradients alone.
    """
    layers = [profile.layers[number] for number in cut]
    whole_s = [seconds(profile.micro_batches, layer.backward_s, micro_batch) for layer in layers]
    shares = [layer.split or (1.0, 1.0) for layer in layers]
    if cut.start == 0:
        trained = next((at for at, layer in enumerate(layers) if layer.parameter_bytes), None)
        first_s = 0.0 if trained is None else shares[trained][1] * whole_s[trained] + sum(whole_s[trained + 1 :])
        return 0.0, again_s + first_s
    inputs_s = sum(inputs * whole for (inputs, _), whole in zip(shares, whole_s, strict=True))
    weights_s = sum(weights * whole for (_, weights), whole in zip(shares, whole_s, strict=True))
    return again_s + inputs_s, weights_s
