"""A small MapReduce job whose sums differ in their last bits if they are taken in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from oakum_worker.map_reduce.draws import uniform
from oakum_worker.map_reduce.job import Arrays, add
from oakum_worker.map_reduce.rounds import RoundTask, map_reduce_task
from oakum_worker.spec import TrainerSpec

NUM_BLOCKS, WIDTH = 11, 6


class Counting:
    """Draws the state towards noisy means of the blocks; `on_map(state, block)` is called before each map."""

    def __init__(self, on_map: Callable[[Arrays, int], None] = lambda _state, _block: None) -> None:
        self.on_map = on_map

    def map(self, state: Arrays, block: Any) -> Arrays:
        number, values = block
        self.on_map(state, number)
        noise = uniform(3, int(state["round"]), examples=np.array([number]), units=WIDTH)[0]
        away = (state["centre"] - values) * (1 + noise)
        return {
            "pull": np.float32(10.0 ** (number % 5)) * away.astype(np.float32),
            "loss": np.asarray(float((away**2).sum())),
            "examples": np.asarray(4.0),
        }

    def combine(self, left: Arrays, right: Arrays) -> Arrays:
        return add(left, right)

    def update(self, state: Arrays, statistics: Arrays) -> Arrays:
        return {"centre": state["centre"] - np.float32(1e-6) * statistics["pull"]}


def blocks() -> list[tuple[int, np.ndarray]]:
    """The job's blocks, (number, values), as a data set."""
    generator = np.random.default_rng(5)
    return [(number, generator.normal(size=WIDTH).astype(np.float32)) for number in range(NUM_BLOCKS)]


def counting_task(on_map: Callable[[Arrays, int], None] = lambda _state, _block: None) -> RoundTask:
    """The job as a task, with a state that begins at zero."""
    return map_reduce_task(Counting(on_map), {"centre": np.zeros(WIDTH, dtype=np.float32)}, blocks())


def spec_fields() -> dict[str, Any]:
    """The fields that a spec of the job needs besides name and entrypoint."""
    return {"global_batch": NUM_BLOCKS, "parallel": {"data": "map-reduce"}}


def paced_counting(spec: TrainerSpec, gate: str, map_s: float) -> RoundTask:
    """The task, whose maps take `map_s` seconds until the file `gate` exists."""
    import time
    from pathlib import Path

    def wait(_state: Arrays, _block: int) -> None:
        if not Path(gate).exists():
            time.sleep(map_s)

    return counting_task(wait)
