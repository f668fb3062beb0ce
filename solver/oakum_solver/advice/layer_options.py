"""The input of the choice of algorithms: the options of each layer. And its output: a choice, with its time and
memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oakum_solver.errors import ProblemError


@dataclass(frozen=True, slots=True)
class LayerOption:
    """One algorithm for one layer at a given batch. Raises `ProblemError` for a time that is negative or not
    finite."""

    algorithm: str
    seconds: float
    """T_kl: forward and backward pass."""
    kept_bytes: int
    """Kept from the forward to the backward pass, beside what all other layers keep."""
    buffer_bytes: int = 0
    """Needed only while the layer computes."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < math.inf:
            raise ProblemError(f"{self.algorithm} takes {self.seconds} s: expected a finite number, at least 0")


Layers = Sequence[Sequence[LayerOption]]
"""The options of each layer; at least one for each."""


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """One option for each layer."""

    options: tuple[int, ...]
    """Index of the option, by layer."""
    seconds: float
    """sum x_kl T_kl."""
    memory_bytes: int
    """Of the kept bytes and buffers together, as the workspace is shared or separate."""


def chosen(layers: Layers, options: Sequence[int], *, shared: bool) -> LayerChoice:
    """The choice of these options, with its time and memory."""
    picked = [layer[index] for layer, index in zip(layers, options, strict=True)]
    buffers = [option.buffer_bytes for option in picked]
    buffer = max(buffers, default=0) if shared else sum(buffers)
    kept = sum(option.kept_bytes for option in picked)
    return LayerChoice(tuple(options), math.fsum(option.seconds for option in picked), kept + buffer)


def refuse_empty(layers: Layers) -> None:
    """Raise `ProblemError` where a layer has nothing to choose from."""
    for number, layer in enumerate(layers):
        if not layer:
            raise ProblemError(f"layer {number} has no algorithm: give at least one for each layer")
