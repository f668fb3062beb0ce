"""Stacked restricted Boltzmann machines, trained layer by layer by CD-1, as a MapReduce job.

G. Hinton, R. Salakhutdinov: Reducing the dimensionality of data with neural networks, Science 313 (2006).
"""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from oakum_worker.map_reduce.draws import uniform
from oakum_worker.map_reduce.job import Arrays, add


class Block(NamedTuple):
    """Some examples of the data set, with their numbers in it."""

    numbers: np.ndarray
    """int64 of shape (n,)."""
    images: np.ndarray
    """float32 of shape (n, pixels); in a prepared block (n, units), the activities of a layer."""


def blocks_of(images: np.ndarray, size: int) -> list[Block]:
    """The images in blocks of `size`, the last of which may have fewer."""
    numbers = np.arange(len(images))
    return [Block(numbers[at : at + size], images[at : at + size]) for at in range(0, len(images), size)]


def first_state(widths: tuple[int, ...], seed: int) -> dict[str, np.ndarray]:
    """Weights drawn from 0.1 N(0, 1), biases and velocities of 0, for each pair of layers."""
    draw = np.random.default_rng(seed)
    state = {}
    for layer, (below, above) in enumerate(itertools.pairwise(widths)):
        values = {"w": 0.1 * draw.normal(size=(below, above)), "b": np.zeros(above), "c": np.zeros(below)}
        for name, value in values.items():
            state[f"{name}{layer}"] = value.astype(np.float32)
            state[f"v{name}{layer}"] = np.zeros_like(state[f"{name}{layer}"])
    return state


@dataclass(frozen=True)
class StackedMachines:
    """CD-1 of one layer after the other, `rounds_per_layer` rounds each."""

    num_layers: int
    rounds_per_layer: int
    rounds_per_epoch: int
    seed: int
    rate: float = 0.1
    momentum: tuple[float, float] = (0.5, 0.9)
    """In the first fifth of a layer's rounds, and afterwards."""
    decay: float = 2e-4

    def layer_of(self, state: Arrays) -> int:
        """The layer that the round trains."""
        return min(int(state["round"]) // self.rounds_per_layer, self.num_layers - 1)

    def prepared_by(self, state: Arrays) -> list[str] | None:
        """The weights and biases below the layer that the round trains, which no longer change."""
        below = range(self.layer_of(state))
        return [f"{name}{layer}" for layer in below for name in "wb"] or None

    def prepare(self, arrays: Arrays, block: Block) -> Block:
        """The block's activities in the layer that is trained: the propagation between two layers' trainings."""
        return Block(block.numbers, propagated(arrays, block.images, len(arrays) // 2))

    def map(self, state: Arrays, block: Block) -> Arrays:
        """What CD-1 adds up over the examples of a prepared block.

        v0 is the layer's input, h0 = sigma(v0 W + b), s = [h0 > u], v1 = sigma(s W^T + c), h1 = sigma(v1 W + b).
        """
        layer, v0 = self.layer_of(state), block.images
        weights, bias, visible_bias = state[f"w{layer}"], state[f"b{layer}"], state[f"c{layer}"]
        h0 = sigmoid(v0 @ weights + bias)
        epoch = int(state["round"]) // self.rounds_per_epoch
        noise = uniform(self.seed, epoch, layer, examples=block.numbers, units=h0.shape[1])
        v1 = sigmoid((h0 > noise).astype(h0.dtype) @ weights.T + visible_bias)
        h1 = sigmoid(v1 @ weights + bias)
        found = {"w": v0.T @ h0 - v1.T @ h1, "b": (h0 - h1).sum(0), "c": (v0 - v1).sum(0)}
        error = np.asarray(((v0 - v1) ** 2).mean(1).sum(dtype=np.float64))
        return {**found, "loss": error, "examples": np.asarray(float(len(v0)))}

    def combine(self, left: Arrays, right: Arrays) -> Arrays:
        """The sums over both."""
        return add(left, right)

    def update(self, state: Arrays, statistics: Arrays) -> Arrays:
        """The layer's weights and biases after a step with momentum."""
        layer = self.layer_of(state)
        within = int(state["round"]) % self.rounds_per_layer / self.rounds_per_layer
        momentum = np.float32(self.momentum[within >= 0.2])
        rate = np.float32(self.rate / max(float(statistics["examples"]), 1.0))
        changed = {}
        for name in "wbc":
            value, velocity = state[f"{name}{layer}"], state[f"v{name}{layer}"]
            gradient: np.ndarray = rate * statistics[name]
            if name == "w":
                gradient = gradient - np.float32(self.rate * self.decay) * value
            changed[f"v{name}{layer}"] = momentum * velocity + gradient
            changed[f"{name}{layer}"] = value + changed[f"v{name}{layer}"]
        return changed


def propagated(state: Arrays, images: np.ndarray, layers: int) -> np.ndarray:
    """The activities of the layer above the lowest `layers` pairs."""
    activities = images
    for layer in range(layers):
        activities = sigmoid(activities @ state[f"w{layer}"] + state[f"b{layer}"])
    return activities


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), in x's type."""
    return np.asarray(1 / (1 + np.exp(-np.clip(x, -60, 60))))
