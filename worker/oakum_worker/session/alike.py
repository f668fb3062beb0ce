"""Finds out whether the ranks of a script still have one state.

After a step a loop may change whatever it has handed over. Where it does so by its own share of the samples, as a
scheduler does that is stepped by this rank's loss, the ranks part, and no sum of gradients brings them together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from oakum_worker.listing import some_of
from oakum_worker.rehearsal.passage import sketch
from oakum_worker.state.tree import dismantle
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import Task

_Prints = dict[str, tuple[float, float]]
"""What is compared -> the sum of its numbers with random factors that depend on their names, and their norm."""

_TOLERANCE = 1e-4
"""Relative difference that other hardware explains."""
_LAST_STEP = 1024


class RanksAlike:
    """Compares the ranks' states as they were when some of the first steps began."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._prints: _Prints = {}

    def note(self, options: Sequence[Mapping[str, Any]]) -> None:
        """A step begins: note the state where it is to be compared. `options` are those of the optimizer's
        groups."""
        if self._is_due:
            self._prints = _prints_of(self._loop.task, options)

    def find_differences(self) -> str | None:
        """What the ranks have differently, in a sentence that is equal on every rank; None where they are alike or
        are not compared in this step. To be called by all ranks after the step's sums; a collective. Raises
        `GroupError` where a rank is gone."""
        if not self._is_due:
            return None
        numbers = [number for value, norm in self._prints.values() for number in (value, value * value, norm)]
        means = [one / self._loop.ranks.world_size for one in self._loop.ranks.sums(*numbers)]
        places = zip(self._prints, means[::3], means[1::3], means[2::3], strict=True)
        names = [name for name, mean, square, norm in places if _spread(mean, square) > _TOLERANCE * norm]
        if not names:
            return None
        return (
            f"after step {self._loop.step_count} the ranks differ in {some_of(names)}: the loop changes that by "
            "its own samples alone, as by a scheduler that is stepped by this rank's loss, or in a buffer that "
            "the batch is written into. Use what is equal on all ranks: session.loss, or the batch of all ranks "
            "(oakum_worker.gathering.gather_batch, before the step)"
        )

    @property
    def _is_due(self) -> bool:
        """Whether there are several ranks, after step 1, 2, 4, 8 and so on."""
        steps = self._loop.step_count
        return self._loop.ranks.world_size > 1 and 0 < steps <= _LAST_STEP and steps & (steps - 1) == 0


def _prints_of(task: Task, options: Sequence[Mapping[str, Any]]) -> _Prints:
    prints = {
        "the weights": _print(task.model.named_parameters()),
        "the model's buffers": _print(task.model.named_buffers()),
        "the optimizer's options": _print(_numbers("", list(options))),
    }
    for name, part in task.extra_state.items():
        document, tensors = dismantle(dict(part.state_dict()))
        prints[f"state {name}"] = _print([*_numbers("", document), *tensors.items()])
    return prints


def _spread(mean: float, mean_square: float) -> float:
    return math.sqrt(max(mean_square - mean**2, 0.0))


def _print(named: Any) -> tuple[float, float]:
    value = squares = 0.0
    for name, one in named:
        tensor = one if isinstance(one, torch.Tensor) else torch.tensor(float(one), dtype=torch.float64)
        if tensor.numel() == 0 or tensor.is_complex():
            continue
        short = sketch(name, tensor)
        if math.isfinite(short.sum):
            value, squares = value + short.sum, squares + short.norm * short.norm
    return value, math.sqrt(squares)


def _numbers(path: str, document: Any) -> Iterator[tuple[str, float]]:
    if isinstance(document, int | float):
        yield path, float(document)
    elif isinstance(document, Mapping):
        for name, one in document.items():
            yield from _numbers(f"{path}.{name}", one)
    elif isinstance(document, list | tuple):
        for number, one in enumerate(document):
            yield from _numbers(f"{path}.{number}", one)
