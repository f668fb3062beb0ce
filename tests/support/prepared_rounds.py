"""A MapReduce job of two layers, the lower of which is trained in the first rounds and then prepares blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from counting_rounds import WIDTH, blocks
from oakum_worker.map_reduce.draws import uniform
from oakum_worker.map_reduce.job import Arrays, add
from oakum_worker.map_reduce.rounds import RoundTask, map_reduce_task

LOWER_ROUNDS = 2
"""Rounds that train the lower layer."""
Hook = Callable[[int], None]


class TwoLayers:
    """Draws each layer towards noisy means of its inputs; `on_prepare(number)` is called with each block's number
    before the block is prepared."""

    def __init__(self, on_prepare: Hook = lambda _number: None) -> None:
        self.on_prepare = on_prepare

    def prepared_by(self, state: Arrays) -> Sequence[str] | None:
        return None if int(state["round"]) < LOWER_ROUNDS else ["lower"]

    def prepare(self, arrays: Arrays, block: Any) -> Any:
        self.on_prepare(block[0])
        return through(arrays["lower"], block)

    def map(self, state: Arrays, block: Any) -> Arrays:
        number, values = block
        name = layer_of(state)
        noise = uniform(3, int(state["round"]), examples=np.array([number]), units=WIDTH)[0]
        away = (state[name] - values) * (1 + noise)
        return {
            "pull": np.float32(10.0 ** (number % 5)) * away.astype(np.float32),
            "loss": np.asarray(float((away**2).sum())),
            "examples": np.asarray(4.0),
        }

    def combine(self, left: Arrays, right: Arrays) -> Arrays:
        return add(left, right)

    def update(self, state: Arrays, statistics: Arrays) -> Arrays:
        name = layer_of(state)
        return {name: state[name] - np.float32(1e-6) * statistics["pull"]}


class Unprepared:
    """The job of two layers, whose maps do all themselves."""

    def __init__(self) -> None:
        self._job = TwoLayers()
        self.combine, self.update = self._job.combine, self._job.update

    def map(self, state: Arrays, block: Any) -> Arrays:
        is_upper = layer_of(state) == "upper"
        return self._job.map(state, through(state["lower"], block) if is_upper else block)


def layer_of(state: Arrays) -> str:
    """The name of the layer that the round trains."""
    return "lower" if int(state["round"]) < LOWER_ROUNDS else "upper"


def through(lower: np.ndarray, block: Any) -> Any:
    """The block after the lower layer."""
    number, values = block
    return number, np.tanh(values * (1 + lower))


def first_state() -> dict[str, np.ndarray]:
    """Both layers, of zeros."""
    return {name: np.zeros(WIDTH, dtype=np.float32) for name in ("lower", "upper")}


def layered_task(job: Any = None) -> RoundTask:
    """The job as a task; by default `TwoLayers`."""
    return map_reduce_task(job or TwoLayers(), first_state(), blocks())
