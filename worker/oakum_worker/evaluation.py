"""Evaluating a large data set on all ranks together, instead of on rank 0 alone.

    from oakum_worker.evaluation import sum_over

    def evaluate(model):
        def sums(batch):
            images, labels = batch
            outputs = model(images)
            loss = cross_entropy(outputs, labels, reduction="sum")
            return {"loss": loss, "correct": (outputs.argmax(1) == labels).sum()}

        totals = sum_over(held_out, sums, batch_size=256)
        return {name: total / len(held_out) for name, total in totals.items()}

    return Task(..., evaluate=evaluate, evaluates_together=True)

The batches are the same at any number of ranks: batch i has the samples from i * batch_size on, in the data set's
order. Each is computed by one rank, and the batches' sums are added up exactly, so every rank has the result of a
rank alone, bit for bit, where a batch's own sums do not depend on the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import default_collate

from oakum_worker.data_sets import SizedDataset, is_stream, read_samples
from oakum_worker.errors import TaskError
from oakum_worker.parallel.reshard import gather_documents
from oakum_worker.randomness.counters import mix, seed_everything


@dataclass(frozen=True)
class EvaluatingRanks:
    """The ranks that divide a data set among them; by default a rank alone."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    """Random numbers that are drawn for a batch follow from this seed and the batch's number."""


_PRESENT: ContextVar[EvaluatingRanks | None] = ContextVar("ranks that evaluate together", default=None)


@contextmanager
def evaluated_by(ranks: EvaluatingRanks) -> Iterator[None]:
    """Context in which `sum_over` divides data sets among the given ranks."""
    token = _PRESENT.set(ranks)
    try:
        yield
    finally:
        _PRESENT.reset(token)


def sum_over(
    dataset: SizedDataset,
    sums: Callable[[Any], Mapping[str, Any]],
    *,
    batch_size: int,
    collate: Callable[[list[Any]], Any] = default_collate,
) -> dict[str, float]:
    """The sums over all samples of the data set, by name, equal on every rank.

    `sums(batch)` returns what a batch adds to each: numbers, or tensors of one element, under the same names for
    each batch. In the `evaluate` of a task with `evaluates_together` this is a collective: every rank of a
    replicated or sharded trainer computes every n-th batch. Elsewhere, as in a pipeline's or a grid's evaluation,
    the rank that calls it computes all batches.

    Raises `TaskError` for a stream, a data set without samples, and what is not numbers by name, and `GroupError`
    when a rank is gone.
    """
    ranks = _PRESENT.get() or EvaluatingRanks()
    numbers = _numbers_of(dataset, batch_size)
    own: dict[int, dict[str, float]] = {}
    # Every rank computes equally many batches, since the passes of a sharded model communicate. Where none is
    # left the rank computes the first one, which then counts nothing.
    for turn in range(math.ceil(len(numbers) / ranks.world_size)):
        number = turn * ranks.world_size + ranks.rank
        is_left = number < len(numbers)
        start = (number if is_left else 0) * batch_size
        seed_everything(mix(ranks.seed, start))
        samples = read_samples(dataset, range(start, min(start + batch_size, len(dataset))))
        added = numbers_by_name(sums(collate(samples)), "the function that sum_over was given")
        if is_left:
            own[number] = added
    sums_by_rank = gather_documents(list(own.items()), ranks.group, ranks.world_size)
    return _added([values for _, values in sorted(pair for one in sums_by_rank for pair in one)])


def numbers_by_name(returned: Any, who: str) -> dict[str, float]:
    """The numbers by name that `who` has returned, as floats. Raises `TaskError` that says what to change where
    they are something else."""
    if not isinstance(returned, Mapping):
        raise TaskError(f"{who} returned a {type(returned).__name__}: return a dict of numbers by name")
    return {str(name): _number(name, value, who) for name, value in returned.items()}


def _number(name: object, value: Any, who: str) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise TaskError(
            f"{who} returned {name!r} as a tensor of shape {tuple(value.shape)}: return one number, such as its "
            "mean"
        )
    try:
        if isinstance(value, str):
            raise ValueError("a text is no number")
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shown = f"a tensor on {value.device}" if isinstance(value, torch.Tensor) else repr(value)
        raise TaskError(
            f"{who} returned {name!r} as {shown:.200}, which cannot be read as a number "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}): return a dict of numbers by "
            "name"
        ) from error


def _numbers_of(dataset: SizedDataset, batch_size: int) -> range:
    if is_stream(dataset):
        raise TaskError(
            "sum_over got a stream, of which no rank can take every n-th batch: give a data set with __getitem__"
        )
    if len(dataset) == 0 or batch_size < 1:
        raise TaskError(
            f"sum_over got a data set of {len(dataset)} samples and batch_size {batch_size}: both have to be at "
            "least 1"
        )
    return range(math.ceil(len(dataset) / batch_size))


def _added(batches: list[dict[str, float]]) -> dict[str, float]:
    names = batches[0].keys()
    if any(batch.keys() != names for batch in batches):
        differing = sorted({name for batch in batches for name in batch.keys() ^ names})
        raise TaskError(
            f"the function that sum_over was given returned {', '.join(differing)} for some batches only: return "
            "the same names for each, with 0 where a batch adds nothing"
        )
    return {name: _exact_sum([batch[name] for batch in batches]) for name in names}


def _exact_sum(values: list[float]) -> float:
    if all(map(math.isfinite, values)):
        return math.fsum(values)
    return sum(values)
