"""How many samples a step takes, and what that does to the learning rate."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cells import each
from oakum_worker.parallel.step_engine import GradientNorms
from oakum_worker.state.cursor import Cursor
from oakum_worker.step.batch_sizes import AdaptiveBatchSizes, BatchSizes, batch_sizes
from oakum_worker.step.sampler import ElasticSampler
from training_ranks import build_spec

WEIGHT = torch.nn.Parameter(torch.ones(1))
SGD = torch.optim.SGD([WEIGHT])


def adaptive(
    num_samples: int = 10_000, optimizer: torch.optim.Optimizer = SGD, largest: int = 64, **options: Any
) -> BatchSizes:
    """First batches of 8 samples."""
    return batch_sizes(build_spec(adaptive_batch={"largest": largest, **options}), num_samples, optimizer)


def train(batches: BatchSizes, num_steps: int, noise: float = math.inf, start: int = 0) -> list[int]:
    """The batch sizes of steps in an endless first epoch whose critical batch is `noise` times the first batch."""
    sizes = []
    for step in range(start, start + num_steps):
        sizes.append(batches.at(0))
        # For |G|^2 = 1 and two parts; the variance of a batch of 8 samples is `noise`.
        sqr, var = (0.0, 1.0) if noise == math.inf else (1.0, noise)
        var_now = var * 8 / sizes[-1]
        carried = None if batches.carried is None else float(batches.carried)
        norms = GradientNorms(sqr + 2 * var_now, 2, torch.tensor(sqr + var_now, dtype=torch.float64), carried)
        batches.observe(norms, Cursor(step + 1, 0, 0), sizes[-1], 1.0)
    return sizes


def steps_by_walking(sizes: BatchSizes, num_samples: int, epochs: int) -> int:
    sampler, cursor = ElasticSampler(num_samples, sizes.at, seed=0), Cursor()
    while cursor.epoch < epochs:
        cursor = cursor.after(sampler.batch_size(cursor), num_samples)
    return cursor.step


schedules = st.dictionaries(st.integers(0, 12), st.integers(1, 60), max_size=4)


@settings(deadline=None)
@given(num_samples=st.integers(1, 100), first=st.integers(1, 60), schedule=schedules, epochs=st.integers(1, 9))
def test_the_number_of_steps_is_known_from_the_start(
    num_samples: int, first: int, schedule: dict[int, int], epochs: int
) -> None:
    spec = build_spec(global_batch=first, batch_schedule=sorted(schedule.items()), epochs=epochs)
    batches = batch_sizes(spec, num_samples, SGD)
    assert batches.total_steps() == steps_by_walking(batches, num_samples, epochs)


@settings(deadline=None)
@given(num_samples=st.integers(1, 100), schedule=schedules, epochs=st.integers(1, 9), walked=st.integers(0, 200))
def test_the_number_of_steps_is_the_same_from_every_step_on(
    num_samples: int, schedule: dict[int, int], epochs: int, walked: int
) -> None:
    spec = build_spec(batch_schedule=sorted(schedule.items()), epochs=epochs)
    batches, cursor = batch_sizes(spec, num_samples, SGD), Cursor()
    sampler = ElasticSampler(num_samples, batches.at, seed=0)
    for _ in range(min(walked, batches.total_steps())):
        cursor = cursor.after(sampler.batch_size(cursor), num_samples)
    assert batches.total_steps(cursor) == batches.total_steps()


def test_a_stage_of_the_schedule_lasts_until_the_next() -> None:
    batches = batch_sizes(build_spec(batch_schedule=[(2, 16), (4, 12)]), 100, SGD)
    assert [batches.at(epoch) for epoch in range(6)] == [8, 8, 16, 16, 12, 12]


def test_a_schedule_leaves_the_learning_rate_to_the_task_and_has_no_state() -> None:
    batches = batch_sizes(build_spec(batch_schedule=[(2, 16)]), 100, SGD)
    assert not batches.measures_noise
    assert (batches.rate_factor(16), batches.schedule_steps(Cursor(0, 2, 0), 16)) == (1.0, 1)
    assert (batches.carried, batches.state_dict()) == (None, {})


def test_a_noisy_gradient_doubles_the_batch_at_every_hundredth_step_up_to_the_largest() -> None:
    sizes = train(adaptive(largest=50), 450)
    assert sizes == [8] * 100 + [16] * 100 + [32] * 100 + [50] * 150


@each(("noise", "last"), [(1.9, 8), (2.1, 16), (7.9, 32), (8.1, 64)], ids=lambda value: str(value))
def test_the_batch_stays_at_or_below_the_critical_one(noise: float, last: int) -> None:
    assert train(adaptive(largest=64), 600, noise)[-1] == last


def test_a_batch_never_shrinks() -> None:
    batches = adaptive()
    train(batches, 200)
    assert set(train(batches, 300, noise=0.1, start=200)) == {32}


def test_without_a_measurement_the_batch_stays_and_so_does_the_rate() -> None:
    batches = adaptive()
    for step in range(300):
        batches.observe(GradientNorms(1.0, 1, torch.tensor(1.0), None), Cursor(step + 1, 0, 0), 8, 1.0)
    assert (batches.at(0), batches.rate_factor(64)) == (8, 1.0)


ADAM = torch.optim.AdamW([WEIGHT])


@each(
    ("optimizer", "options", "factor"),
    [
        (SGD, {}, 2.0),
        (ADAM, {}, math.sqrt(2)),
        (ADAM, {"lr_scaling": "adascale"}, 2.0),
        (SGD, {"lr_scaling": "sqrt"}, math.sqrt(2)),
        (SGD, {"lr_scaling": "none"}, 1.0),
    ],
    ids=["SGD", "Adam", "adascale", "sqrt", "none"],
)
def test_the_rate_follows_the_gain_as_the_optimizer_needs_it(
    optimizer: torch.optim.Optimizer, options: dict[str, Any], factor: float
) -> None:
    batches = adaptive(optimizer=optimizer, **options)
    train(batches, 99, noise=2.0)
    assert batches.rate_factor(32) == pytest.approx(factor)  # (2 + 1) / (2 / 4 + 1)


def test_a_small_last_batch_has_the_tasks_own_rate() -> None:
    batches = adaptive()
    train(batches, 200)
    assert batches.rate_factor(3) == 1.0


def test_resumed_batches_go_on_as_if_nothing_had_happened() -> None:
    uninterrupted, before, after = adaptive(), adaptive(), adaptive()
    train(uninterrupted, 230, noise=5)
    train(before, 130, noise=5)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert set(train(after, 100, noise=5, start=130)) == {16, 32}
    assert after.state_dict() == uninterrupted.state_dict()


@settings(deadline=None)
@given(num_samples=st.integers(1, 300), epochs=st.integers(1, 4), growth=st.lists(st.integers(8, 50), max_size=40))
def test_the_tasks_schedule_ends_with_the_data_however_the_batch_grows(
    num_samples: int, epochs: int, growth: list[int]
) -> None:
    batches, cursor, schedule = adaptive(num_samples), Cursor(), 0
    assert isinstance(batches, AdaptiveBatchSizes)
    sampler = ElasticSampler(num_samples, batches.at, seed=0)
    sizes = iter(sorted(growth))
    while cursor.epoch < epochs:
        batches._batch = next(sizes, batches.at(0))
        size = sampler.batch_size(cursor)
        steps = batches.schedule_steps(cursor, size)
        assert steps >= 1
        schedule, cursor = schedule + steps, cursor.after(size, num_samples)
    assert schedule == epochs * math.ceil(num_samples / 8)


def test_the_number_of_steps_left_is_told_by_the_present_batch() -> None:
    batches = adaptive(num_samples=100, largest=16)
    assert batches.total_steps() == 2 * 13
    train(batches, 100)
    assert batches.total_steps(Cursor(step=9, epoch=0, consumed=72)) == 9 + 2 + 7
    assert batches.total_steps(Cursor(step=20, epoch=2, consumed=0)) == 20
