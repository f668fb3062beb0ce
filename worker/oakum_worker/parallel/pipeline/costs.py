"""What a model's layers, the links between ranks and a rank's memory are, and what stages made of them cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from oakum_worker.errors import ScheduleError


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer of the chain, as measured. Times are seconds per sample, one for each size of the profile."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    parameter_bytes: int = 0
    """Of its weights; its gradients take as much again."""
    optimizer_bytes: int = 0
    activation_bytes: int = 0
    """Kept of each sample from forward to backward."""
    output_bytes: int = 0
    """Of each sample, handed to the next layer; the gradient that comes back is as large."""
    split: tuple[float, float] | None = (0.5, 0.5)
    """What gradients of its inputs alone take of a whole backward pass, and those of its weights alone; two
    products of the same size in a linear layer. None where backward cannot be split."""


@dataclass(frozen=True, slots=True)
class Tied:
    """Weights that several layers share. Each of these layers' costs counts them."""

    layers: tuple[int, ...]
    parameter_bytes: int
    optimizer_bytes: int = 0


@dataclass(frozen=True)
class ModelProfile:
    """A chain of layers, measured with micro-batches of some sizes."""

    micro_batches: tuple[int, ...]
    """The sizes in samples, rising."""
    layers: tuple[LayerCost, ...]
    input_bytes: int = 0
    """Of each sample."""
    smallest: int = 1
    """Samples that a micro-batch has at least."""
    tied: tuple[Tied, ...] = ()

    @property
    def can_split(self) -> bool:
        """Whether backward passes of all layers can be split in two."""
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


@dataclass(frozen=True, slots=True)
class Links:
    """Between any two ranks."""

    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = math.inf

    def transfer_s(self, num_bytes: float) -> float:
        """How long a message is on its way, without the latency."""
        return num_bytes / self.bandwidth_bytes_per_s

    def all_reduce_s(self, num_ranks: int, num_bytes: float) -> float:
        """2 log2(r) a + 2 (r-1) b L / r (Rabenseifner; Chimera, arXiv:2107.06925, section 3.4)."""
        if num_ranks < 2:
            return 0.0
        transfer_s = 2 * (num_ranks - 1) * self.transfer_s(num_bytes) / num_ranks
        return 2 * math.log2(num_ranks) * self.latency_s + transfer_s


@dataclass(frozen=True)
class StageCosts:
    """Stages of a model for micro-batches of one size, stage by stage."""

    forward_s: tuple[float, ...]
    """Of one micro-batch."""
    doubled_s: tuple[float, ...]
    """Of a forward pass of two micro-batches at once."""
    backward_s: tuple[float, ...]
    """Of one micro-batch; with recomputation its forward pass is in it once more."""
    split_s: tuple[tuple[float, float], ...]
    """Of the two parts of a split backward pass: gradients of a stage's inputs, and those of its weights."""
    transfer_s: tuple[float, ...]
    """Of one micro-batch from each stage to the next."""
    state_bytes: tuple[int, ...]
    """Weights, gradients and optimizer state."""
    parameter_bytes: tuple[int, ...]
    """Of weights that no other stage has."""
    tied_bytes: tuple[tuple[tuple[int, ...], int], ...]
    """(stages, bytes) of weights that several stages have, which sum their gradients."""
    held_bytes: tuple[int, ...]
    """Kept of one micro-batch from forward to backward: its activations, or with recomputation its input."""
    working_bytes: tuple[int, ...]
    """Besides, while one micro-batch is computed: with recomputation its activations."""


def stage_costs(
    profile: ModelProfile, cuts: Sequence[range], micro_batch: int, links: Links, *, recompute: bool = False
) -> StageCosts:
    """What the stages cost that have the layers `cuts`, with micro-batches of so many samples."""
    forward = [_stage_s(profile, cut, micro_batch, backward=False) for cut in cuts]
    backward = [_stage_s(profile, cut, micro_batch, backward=True) for cut in cuts]
    layers = [[profile.layers[number] for number in cut] for cut in cuts]
    activations = [micro_batch * sum(layer.activation_bytes for layer in stage) for stage in layers]
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
        working_bytes=tuple(activations if recompute else [0] * len(layers)),
    )


def _weights(
    profile: ModelProfile, cuts: Sequence[range]
) -> tuple[list[int], list[int], list[tuple[tuple[int, ...], int]]]:
    """`state_bytes`, `parameter_bytes` and `tied_bytes`: a stage has once what several of its layers share."""
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
    """Each layer's forward and backward pass of one micro-batch, in seconds: what stages are balanced by."""
    sizes = profile.micro_batches
    return [
        seconds(sizes, layer.forward_s, micro_batch) * (1 + recompute)
        + seconds(sizes, layer.backward_s, micro_batch)
        for layer in profile.layers
    ]


def seconds(sizes: Sequence[int], per_sample_s: Sequence[float], micro_batch: int) -> float:
    """How long a micro-batch takes: straight lines between the sizes measured, the nearest rate beyond them."""
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
    """The parts of a split backward pass, the first of which begins with `again_s` of recomputation.

    Nobody wants gradients of the model's inputs: the first stage does all in its second part, down to its first
    layer that has weights, of which only theirs are wanted.
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
