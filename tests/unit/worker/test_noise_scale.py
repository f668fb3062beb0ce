"""The gradient's noise, estimated from norms that every rank has alike."""

from __future__ import annotations

import json
import math

import pytest
import torch

from cells import each
from oakum_worker.parallel.step_engine import GradientNorms
from oakum_worker.step.gradient_noise import NoiseScale


def observe(noise: NoiseScale, norms: list[tuple[float, int, float]], batch: int, loss_scale: float = 1) -> None:
    """Steps of (parts_sqr, num_parts, total_sqr), each total carried by the step after it."""
    for parts_sqr, num_parts, total_sqr in norms:
        carried = None if noise.carried is None else float(noise.carried)
        noise.observe(GradientNorms(parts_sqr, num_parts, torch.tensor(total_sqr), carried), batch, loss_scale)


def known(parts_sqr: float, num_parts: int, total_sqr: float, batch: int = 32) -> NoiseScale:
    """A noise scale for first batches of 32 samples that has seen many equal steps."""
    noise = NoiseScale(32)
    observe(noise, [(parts_sqr, num_parts, total_sqr)] * 80, batch)
    return noise


def test_the_estimates_are_those_of_the_formulas() -> None:
    noise = known(parts_sqr=11.0, num_parts=4, total_sqr=5.0, batch=64)
    assert (noise.sqr, noise.var) == (pytest.approx((4 * 5 - 11) / 3), pytest.approx((11 - 5) * 2 / 3))
    assert noise.gain(128) == pytest.approx((4 + 3) / (4 / 4 + 3))
    assert noise.critical_batch == pytest.approx(32 * 4 / 3)


@each("sizes", [[4, 4, 4], [1, 2, 9], [11, 1]], ids=str)
def test_unequal_parts_bias_neither_estimate(sizes: list[int]) -> None:
    # Samples' gradients with a mean of norm^2 0.5 and, over 4 directions, a variance of 10.
    generator = torch.Generator().manual_seed(1)
    mean, spread = torch.tensor([0.5, 0.5, 0, 0]), torch.tensor([1.0, 2.0, 1.0, 2.0])
    samples = mean + spread * torch.randn(200_000, 12, 4, generator=generator)
    parts = [part.mean(1).square().sum(1) for part in samples.split(sizes, dim=1)]
    weighted = sum(size / 12 * part for size, part in zip(sizes, parts, strict=True))
    assert isinstance(weighted, torch.Tensor)
    norms = float(weighted.mean()), len(sizes), float(samples.mean(1).square().sum(1).mean())
    noise = NoiseScale(12)
    observe(noise, [norms] * 80, 12)
    assert noise.sqr == pytest.approx(0.5, rel=0.02)
    assert noise.var == pytest.approx(10 / 12, rel=0.02)


def test_until_enough_steps_were_seen_a_larger_batch_is_worth_nothing_more() -> None:
    noise = NoiseScale(32)
    observe(noise, [(11, 4, 5)] * 40, 32)
    assert (noise.is_known, noise.gain(64), noise.critical_batch) == (False, 1.0, 0.0)


def test_steps_of_a_single_part_tell_nothing() -> None:
    noise = known(parts_sqr=5, num_parts=1, total_sqr=5)
    assert (noise.is_known, noise.carried, noise.gain(64)) == (False, None, 1.0)


def test_steps_of_a_single_part_among_others_are_passed_over() -> None:
    mixed, pure = NoiseScale(32), NoiseScale(32)
    observe(mixed, [(11, 4, 5), (999, 1, 999), (12, 3, 6)] * 30, 32)
    observe(pure, [(11, 4, 5), (12, 3, 6)] * 30, 32)
    assert mixed.state_dict() == pure.state_dict()


@each("norms", [(5, 4, 5), (20, 4, 5), (100, 4, 5), (0, 4, 0)], ids=str)
def test_the_gain_lies_between_one_and_the_ratio_of_the_batches(norms: tuple[float, int, float]) -> None:
    noise = known(*norms)
    gains = [noise.gain(batch) for batch in (1, 32, 64, 320)]
    assert gains[:2] == [1, 1]
    assert 1 <= gains[2] <= 2
    assert 1 <= gains[3] <= 10


def test_noise_that_hides_the_gradient_makes_every_batch_worth_its_samples() -> None:
    noise = known(parts_sqr=100, num_parts=4, total_sqr=5)
    assert (noise.sqr, noise.gain(320), noise.critical_batch) == (0, pytest.approx(10), math.inf)


def test_a_gradient_without_noise_makes_more_samples_worth_nothing() -> None:
    noise = known(parts_sqr=5, num_parts=4, total_sqr=5)
    assert (noise.var, noise.gain(320), noise.critical_batch) == (0, 1, 0)


def test_a_loss_scale_changes_nothing() -> None:
    noise = NoiseScale(32)
    observe(noise, [(11 * 1024.0**2, 4, 5 * 1024.0**2)] * 80, 32, loss_scale=1024)
    assert noise.state_dict() == known(11, 4, 5).state_dict()


@pytest.mark.parametrize("norms", [(math.inf, 4, 5.0), (11.0, 4, math.nan)], ids=str)
def test_a_step_that_overflowed_is_left_out(norms: tuple[float, int, float]) -> None:
    noise = known(11, 4, 5)
    expected = noise.gain(128)
    observe(noise, [norms, (11, 4, 5)], 32)
    assert noise.gain(128) == pytest.approx(expected)


def test_ranks_that_find_other_totals_stay_equal() -> None:
    ranks = [NoiseScale(32), NoiseScale(32)]
    for _ in range(80):
        own = [rank.carried for rank in ranks]
        carried = None if None in own else sum(float(total) for total in own if total is not None) / 2
        for number, rank in enumerate(ranks):
            rank.observe(GradientNorms(11.0, 4, torch.tensor(5 + 1e-6 * number), carried), 32)
    assert ranks[0].is_known
    assert ranks[0].gain(64) == ranks[1].gain(64)


def test_a_noise_scale_that_goes_on_elsewhere_is_the_same_to_the_last_bit() -> None:
    norms = [(10 + step / 7, 4, 5 - step / 13) for step in range(60)]
    uninterrupted, before, after = NoiseScale(32), NoiseScale(32), NoiseScale(32)
    observe(uninterrupted, norms, 32)
    observe(before, norms[:25], 32)
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    observe(after, norms[25:], 32)
    assert after.state_dict() == uninterrupted.state_dict()
