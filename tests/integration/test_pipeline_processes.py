"""Pipelines whose workers are processes: dropout, torch's own schedules beside ours, and killed workers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from pipeline_processes import (
    NUM_WORKERS,
    TORCHS,
    WAYS,
    Processes,
    compare_with_torch,
    cut,
    lose_a_worker,
    train_every_way,
)
from pipeline_ranks import Training, build_transformer, train_alone

DROPPING = Training(partial(build_transformer, dropout=0.2), sizes=(3, 2, 3, 2), num_steps=3, draws=True)


def test_dropout_does_not_depend_on_where_the_layers_are_nor_on_recomputation() -> None:
    expected = train_alone(DROPPING)
    without = train_alone(Training(sizes=DROPPING.sizes, num_steps=3))
    assert abs(expected.losses[0] - without.losses[0]) > 1e-3  # it does drop
    with Processes(NUM_WORKERS, train_every_way, DROPPING) as processes:
        by_rank = processes.answers()
    made = {way: [rank[at] for rank in by_rank] for at, way in enumerate(WAYS)}
    for way, ranks in made.items():
        weights = {name: value for rank in ranks for name, value in rank.weights.items()}
        torch.testing.assert_close(weights, expected.weights, rtol=0, atol=1e-9, msg=way)
    for way, ranks in made.items():
        if way.endswith(", recomputed") and way.removesuffix(", recomputed") in made:
            for one, other in zip(ranks, made[way.removesuffix(", recomputed")], strict=True):
                assert one.losses == other.losses
                assert all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


def test_gradients_are_those_of_torchs_own_schedules() -> None:
    with Processes(NUM_WORKERS, compare_with_torch) as processes:
        differences = processes.answers()
    assert [rank.keys() for rank in differences] == [TORCHS.keys()] * NUM_WORKERS
    assert max(difference for rank in differences for difference in rank.values()) < 1e-14


@pytest.mark.parametrize("message_driven", [False, True])
def test_a_killed_worker_is_a_group_error_on_all_others_once_connections_are_cut(message_driven: bool) -> None:
    with Processes(NUM_WORKERS, lose_a_worker, message_driven, 1, on_word=cut) as processes:
        assert processes.answer(1) is None
        for rank in (0, 2, 3):
            processes.tell(rank)
        survivors = [processes.answer(rank) for rank in (0, 2, 3)]
    assert all(said.startswith("a rank was lost") for said in survivors), survivors
