"""Sums over a data set that ranks divide among them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist

from cells import each
from evaluated_tasks import evaluated_loop, evaluated_task
from oakum_worker.errors import TaskError
from oakum_worker.evaluation import EvaluatingRanks, evaluated_by, sum_over
from oakum_worker.step.training_loop import TrainingLoop
from training_ranks import NUM_SAMPLES, Points, build_spec, in_ranks

BATCHES = 7
"""Of 8 samples, the last one of 5."""


def sums(batch: Any) -> dict[str, Any]:
    return {"total": (batch[0] / 3).sum(), "samples": len(batch[0])}


@each("world_size", [2, 3, 8])
def test_the_sums_of_any_number_of_ranks_are_those_of_one_bit_for_bit(world_size: int) -> None:
    read: list[list[int]] = [[] for _ in range(world_size)]

    def run(group: dist.ProcessGroup, rank: int) -> dict[str, float]:
        points = Points()
        with evaluated_by(EvaluatingRanks(group, rank, world_size)):
            found = sum_over(points, sums, batch_size=8)
        read[rank] = points.read
        return found

    alone = sum_over(Points(), sums, batch_size=8)
    assert alone["samples"] == NUM_SAMPLES
    assert in_ranks(world_size, run) == [alone] * world_size
    # Ranks compute equally many batches; those that have one too many compute the first one again.
    spare = -BATCHES % world_size
    counts = Counter(index for one in read for index in one)
    assert counts == {index: 1 + spare * (index < 8) for index in range(NUM_SAMPLES)}
    assert {len(one) <= 8 * -(-BATCHES // world_size) for one in read} == {True}


def test_what_is_drawn_for_a_batch_does_not_depend_on_the_rank() -> None:
    def drawn(ranks: EvaluatingRanks) -> dict[float, float]:
        found: dict[float, float] = {}

        def note(batch: Any) -> dict[str, float]:
            found[batch[0][0, 0].item()] = torch.rand(()).item()
            return {}

        with evaluated_by(ranks):
            sum_over(Points(), note, batch_size=8)
        return found

    alone = drawn(EvaluatingRanks(seed=5))
    # Without a group nothing is told to others; the batches are those of rank 1.
    second = drawn(EvaluatingRanks(rank=1, world_size=2, seed=5))
    assert second.items() < alone.items()
    assert len(set(alone.values())) == BATCHES
    assert drawn(EvaluatingRanks(seed=6)) != alone


def test_a_task_that_evaluates_together_has_the_metrics_of_a_rank_alone_on_every_rank() -> None:
    loops = [evaluated_loop() for _ in range(3)]
    alone = evaluated_loop().evaluations.run()

    def run(group: dist.ProcessGroup, rank: int) -> dict[str, float]:
        loops[rank].join(group, rank, 3)
        assert loops[rank].evaluations.include_this_rank
        return loops[rank].evaluations.run()

    assert in_ranks(3, run) == [alone] * 3


def test_without_saying_so_rank_0_evaluates_alone_and_all() -> None:
    # Built here and not by the ranks: threads share the generator that weights are drawn from.
    loops = [TrainingLoop(evaluated_task(evaluates_together=False), build_spec()) for _ in range(2)]

    def run(group: dist.ProcessGroup, rank: int) -> dict[str, float] | None:
        loop = loops[rank]
        loop.join(group, rank, 2)
        return loop.evaluations.run() if loop.evaluations.include_this_rank else None

    assert in_ranks(2, run) == [evaluated_loop().evaluations.run(), None]


class Stream:
    def __len__(self) -> int:
        return 3

    def samples(self, epoch: int, start: int) -> Any:
        return iter(())


@each(
    ("dataset", "function", "batch_size", "told"),
    [
        (Stream(), sums, 8, "sum_over got a stream"),
        (Points(), sums, 0, "of 53 samples and batch_size 0"),
        ([], sums, 8, "of 0 samples and batch_size 8"),
        (Points(), lambda _: {"total": torch.ones(8)}, 8, r"tensor of shape \(8,\): return one number"),
        (Points(), lambda _: 3.0, 8, "sum_over was given returned a float: return a dict of numbers by name"),
        (Points(), lambda b: {} if len(b[0]) == 5 else {"n": 1}, 8, "returned n for some batches only"),
    ],
)
def test_what_cannot_be_summed_is_told(dataset: Any, function: Any, batch_size: int, told: str) -> None:
    with pytest.raises(TaskError, match=told):
        sum_over(dataset, function, batch_size=batch_size)


def test_a_value_that_is_not_finite_reaches_the_sum() -> None:
    assert sum_over(Points(), lambda _: {"error": float("inf")}, batch_size=8) == {"error": float("inf")}


def test_sums_are_not_rounded_on_the_way() -> None:
    values = iter([1e16, 1.0, -1e16, 0.1, 0.2, -0.1, -0.2])
    assert sum_over(Points(), lambda _: {"total": next(values)}, batch_size=8) == {"total": 1.0}
