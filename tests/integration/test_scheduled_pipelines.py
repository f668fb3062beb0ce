"""Schedules train as one process does: ranks are threads of this process, over gloo where steps are few."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from oakum_worker.parallel.pipeline.operations import COMPUTATIONS
from oakum_worker.parallel.pipeline.schedules import build
from oakum_worker.schedule_table import NAMES
from pipeline_ranks import (
    DROPPING,
    Outcome,
    Pipeline,
    Training,
    build_transformer,
    train_in_memory,
    train_in_threads,
    train_once_alone,
)

SCHEDULES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "gpipe-2": (2, "gpipe", {}),
    "gpipe-4": (4, "gpipe", {}),
    "1f1b-4": (4, "1f1b", {}),
    "1f1b-8": (8, "1f1b", {}),
    "interleaved-2": (2, "interleaved", {}),
    "interleaved-4": (4, "interleaved", {}),
    "zero-bubble-4": (4, "zero-bubble", {}),
    "zero-bubble-v-2": (2, "zero-bubble-v", {}),
    "zero-bubble-v-4": (4, "zero-bubble-v", {}),
    "chimera-2": (2, "chimera", {"scheme": "concatenation"}),
    "chimera-4-concatenation": (4, "chimera", {"scheme": "concatenation"}),
    "chimera-4-forward-doubling": (4, "chimera", {"scheme": "forward-doubling"}),
    "chimera-4-backward-halving": (4, "chimera", {"scheme": "backward-halving"}),
    "chimera-8-in-4-pipes": (8, "chimera", {"num_pipes": 4}),
}


def pipeline(name: str, num_micro_batches: int, **options: Any) -> Pipeline:
    num_workers, kind, others = SCHEDULES[name]
    schedule = build(kind, num_workers=num_workers, num_micro_batches=num_micro_batches, **others)
    return Pipeline(schedule, **options)


def assert_same(made: list[Outcome], expected: Outcome, what: str, atol: float) -> None:
    """All ranks together have everything, and what they have is as expected."""
    seen = set()
    for outcome in made:
        for name, value in getattr(outcome, what).items():
            torch.testing.assert_close(value, getattr(expected, what)[name], rtol=0, atol=atol, msg=name)
            seen.add(name)
    assert seen == set(getattr(expected, what))


# Samples drop the same wherever they are computed, and with how many others at once.
BY_TWO = replace(DROPPING, sizes=(2,) * 4)


TWENTY_STEPS: list[Any] = [
    pytest.param("gpipe-4", BY_TWO, 1),
    pytest.param("1f1b-4", BY_TWO, 1),
    pytest.param("1f1b-8", BY_TWO, 1, marks=pytest.mark.soak),
    pytest.param("interleaved-4", BY_TWO, 1),
    pytest.param("zero-bubble-4", BY_TWO, 1),
    pytest.param("zero-bubble-v-2", BY_TWO, 1),
    pytest.param("chimera-4-concatenation", DROPPING, 1),
    pytest.param("chimera-4-forward-doubling", DROPPING, 1, marks=pytest.mark.soak),
    pytest.param("chimera-4-backward-halving", DROPPING, 1, marks=pytest.mark.soak),
    pytest.param("chimera-8-in-4-pipes", BY_TWO, 1, marks=pytest.mark.soak),
    pytest.param("gpipe-2", BY_TWO, 4, marks=pytest.mark.soak),
    pytest.param("chimera-2", DROPPING, 4),
]
"""Name in `SCHEDULES`, training, number of replicas."""


def test_no_schedule_is_left_out() -> None:
    assert {SCHEDULES[case.values[0]][1] for case in TWENTY_STEPS} == {*NAMES}


@pytest.mark.parametrize(("name", "training", "num_replicas"), TWENTY_STEPS)
def test_twenty_steps_with_dropout_make_the_weights_of_a_single_process(
    name: str, training: Training, num_replicas: int
) -> None:
    expected = train_once_alone(DROPPING)
    num_micro_batches = len(training.sizes) // num_replicas
    made = train_in_memory(pipeline(name, num_micro_batches, num_replicas=num_replicas), training)
    assert_same(made, expected, "weights", 1e-9)
    assert [sum(losses) for losses in zip(*(rank.losses for rank in made), strict=True)] == pytest.approx(
        expected.losses, abs=1e-12
    )


def test_the_transformer_does_drop() -> None:
    without = train_once_alone(Training(sizes=DROPPING.sizes))
    assert abs(train_once_alone(DROPPING).losses[0] - without.losses[0]) > 1e-3


@pytest.mark.parametrize("name", ["1f1b-4", "zero-bubble-v-4", "chimera-4-forward-doubling"])
def test_gradients_in_float32_are_those_of_a_single_process(name: str) -> None:
    training = Training(partial(build_transformer, dtype=torch.float32), sizes=(2,) * 8)
    made = train_in_threads(pipeline(name, 8), training)
    # All are below 1. They are sums over eight micro-batches, which processors round differently.
    assert_same(made, train_once_alone(training), "gradients", 8 * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize(
    "name",
    [
        "1f1b-4",
        pytest.param("interleaved-2", marks=pytest.mark.soak),
        pytest.param("zero-bubble-v-4", marks=pytest.mark.soak),
        "chimera-4-forward-doubling",
    ],
)
def test_recomputing_activations_changes_no_bit(name: str) -> None:
    training = replace(DROPPING, sizes=(2,) * 4, num_steps=3)
    kept = train_in_threads(pipeline(name, 4), training)
    computed_again = train_in_threads(pipeline(name, 4, recompute=True), training)
    for one, other in zip(kept, computed_again, strict=True):
        assert one.losses == other.losses
        assert_same([one], other, "weights", 0)


@pytest.mark.parametrize("name", ["1f1b-4", "zero-bubble-4", "chimera-4-forward-doubling"])
def test_micro_batches_may_be_of_different_sizes(name: str) -> None:
    training = replace(DROPPING, sizes=(3, 3, 2, 3, 1, 3, 3, 2), num_steps=3)
    made = train_in_threads(pipeline(name, 8), training)
    assert_same(made, train_once_alone(training), "weights", 1e-9)


def test_holders_of_a_stage_have_the_same_bits_in_both_directions_and_all_replicas() -> None:
    training = Training(sizes=(3, 3, 2, 2) * 2, num_steps=5)
    made = train_in_threads(pipeline("chimera-4-concatenation", 4, num_replicas=2), training)
    assert len(made) == 8
    for name in made[0].weights.keys() | made[1].weights.keys():
        holders = [rank for rank in made if name in rank.weights]
        assert len(holders) == 4
        assert all(torch.equal(rank.weights[name], holders[0].weights[name]) for rank in holders)
        assert all(torch.equal(rank.gradients[name], holders[0].gradients[name]) for rank in holders)
    # The tied weight, on the ranks of the first and of the last stage.
    assert torch.equal(made[0].gradients["0.weight"], made[0].gradients["9.weight"])


@pytest.mark.parametrize(
    ("name", "num_early"),
    [("chimera-4-concatenation", [1, 0, 0, 1]), ("chimera-8-in-4-pipes", [3, 0, 0, 3, 3, 0, 0, 3])],
)
def test_summing_gradients_begins_before_the_workers_last_computation_where_a_bubble_follows(
    name: str, num_early: list[int]
) -> None:
    made = train_in_threads(pipeline(name, 8), Training(sizes=(1,) * 8))
    for rank, expected in zip(made, num_early, strict=True):
        kinds = [kind for kind, _ in rank.trace]
        last_computation = max(at for at, kind in enumerate(kinds) if kind in COMPUTATIONS)
        assert kinds[:last_computation].count("all-reduce") == expected
        assert kinds.count("all-reduce") == len({stage for _, stage in rank.trace})


def test_no_more_micro_batches_are_alive_than_the_schedule_says() -> None:
    training = Training(sizes=(1,) * 8)
    assert [rank.max_live for rank in train_in_threads(pipeline("gpipe-4", 8), training)] == [8] * 4
    assert [rank.max_live for rank in train_in_threads(pipeline("1f1b-4", 8), training)] == [4, 3, 2, 1]
    made = train_in_threads(pipeline("chimera-4-concatenation", 8), training)
    assert [rank.max_live for rank in made] == [3, 4, 4, 3]


def test_a_worker_that_is_the_whole_pipeline_needs_nobody() -> None:
    training = Training(sizes=(2,) * 4, num_steps=2)
    made = train_in_threads(Pipeline(build("1f1b", num_workers=1, num_micro_batches=4)), training)
    assert_same(made, train_once_alone(training), "weights", 0)
