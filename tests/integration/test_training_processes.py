"""Ranks in processes of their own: against torch's DDP, and against kill -9."""

from __future__ import annotations

import pytest
from torch import nn

from rank_processes import Processes
from training_child import LAST_STEP, run
from training_ranks import ShakenPoints, build_loop


def test_gradients_equal_those_of_distributed_data_parallel() -> None:
    with Processes(2, run, "ddp", 2) as processes:
        for found in processes.answers():
            assert found["difference"] < 1e-12


def test_a_neighbour_of_a_killed_rank_is_told_and_goes_on_from_the_last_finished_step() -> None:
    alone = build_loop(global_batch=12)
    for _ in range(LAST_STEP):
        alone.step()
    expected = {"step": LAST_STEP, "intact": True, "next_loss": pytest.approx(alone.step().loss, rel=1e-9)}
    with Processes(3, run, "lose_a_peer", 3) as processes:
        assert processes.answer(2) is None
        # One that is not the dead rank's neighbour in the collective may stay blocked until its group is cut.
        told = processes.answers_soon((0, 1), patience_s=1.0)
    assert told
    for found in told:
        assert "a rank was lost" in found.pop("error")
        assert found == expected


def test_dropout_and_augmentation_are_the_same_on_three_ranks() -> None:
    alone = build_loop(nn.Dropout(0.5), dataset=ShakenPoints())
    expected = [alone.step().loss for _ in range(6)]
    with Processes(3, run, "draw", 3) as processes:
        for found in processes.answers():
            assert found["losses"] == pytest.approx(expected, rel=1e-12)
