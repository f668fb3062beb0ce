"""Finds out whether the ranks of a script still have one state.

After a step a loop may change whatever it has handed over. Where it does so by its own share of the samples, as a
scheduler does that is stepped by this rank's loss, the ranks part, and no sum of gradients brings them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from oakum_worker.listing import some_of
from oakum_worker.rehearsal.passage import projection
from oakum_worker.state.tree import dismantle
from oakum_worker.task import Task

Prints = dict[str, tuple[float, float]]
"""What is compared -> the sum of its numbers with random factors that depend on their names, and their norm."""

_TOLERANCE = 1e-4
"""Relative difference that other hardware explains."""


def prints_of(task: Task, options: Sequence[Mapping[str, Any]]) -> Prints:
    """The state as a few numbers; `options` are those of the optimizer's groups."""
    found = {
        "the weights": _print(task.model.named_parameters()),
        "the model's buffers": _print(task.model.named_buffers()),
        "the optimizer's options": _print(_numbers("", list(options))),
    }
    for name, part in task.extra_state.items():
        document, tensors = dismantle(dict(part.state_dict()))
        found[f"state {name}"] = _print([*_numbers("", document), *tensors.items()])
    return found


def told_by_all(sum_over_ranks: Callable[..., Sequence[float]], own: Prints) -> list[str]:
    """What the ranks have differently, equal on every rank. A collective."""
    given = [number for value, norm in own.values() for number in (value, value * value, norm)]
    num, *sums = sum_over_ranks(1.0, *given)
    means = [one / num for one in sums]
    places = zip(own, means[::3], means[1::3], means[2::3], strict=True)
    return [name for name, mean, square, norm in places if math.sqrt(max(square - mean**2, 0)) > _TOLERANCE * norm]


def differing_text(steps: int, names: Sequence[str]) -> str:
    """What to tell of ranks that have `names` differently after so many steps."""
    return (
        f"after step {steps} the ranks differ in {some_of(names)}: the loop changes that by its own samples "
        "alone, as by a scheduler that is stepped by this rank's loss, or in a buffer that the batch is written "
        "into. Use what is equal on all ranks: session.loss, or the batch of all ranks "
        "(oakum_worker.gathering.gather_batch, before the step)"
    )


def _print(named: Any) -> tuple[float, float]:
    value = squares = 0.0
    for name, one in named:
        tensor = one if isinstance(one, torch.Tensor) else torch.tensor(float(one), dtype=torch.float64)
        if tensor.numel() == 0 or tensor.is_complex():
            continue
        part, norm = projection(name, tensor)
        if math.isfinite(part):
            value, squares = value + part, squares + norm * norm
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
