"""Randomness that follows from numbers alone."""

import random

import numpy as np
import torch

from oakum_worker.randomness.counters import mix, permutation, seed_everything


def test_the_mixer_is_splitmix64() -> None:
    # The generator's first output for seed 0, as published with its reference code.
    assert mix(0) == 0xE220A8397B1DCDAF


def test_the_mixer_tells_apart_number_order_and_count() -> None:
    hashes = [mix(), mix(0), mix(0, 0), mix(1, 2), mix(2, 1), mix(2**63), mix(2**63 - 1)]
    assert len(set(hashes)) == len(hashes)


def test_a_key_gives_this_order_on_every_machine_and_with_every_version_of_torch() -> None:
    # Changing these numbers changes the data order of every trainer that continues from a checkpoint.
    assert permutation(10, key=mix(42, 0)).tolist() == [4, 0, 9, 2, 7, 3, 6, 8, 1, 5]


def test_each_place_of_the_order_is_taken_by_each_sample_about_equally_often() -> None:
    orders = torch.stack([permutation(5, key=mix(1, epoch)) for epoch in range(5000)])
    for place in orders.unbind(1):
        assert (torch.bincount(place, minlength=5) - 1000).abs().max() < 150


def test_seeding_repeats_the_choices_of_every_generator() -> None:
    def draw() -> tuple[float, float, float]:
        seed_everything(mix(5))
        return torch.rand(()).item(), random.random(), np.random.rand()

    assert draw() == draw()
