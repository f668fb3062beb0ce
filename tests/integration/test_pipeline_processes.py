"""Pipelines whose workers are processes: torch's own schedules beside ours, and killed workers."""

from __future__ import annotations

import pytest

from pipeline_processes import (
    NUM_WORKERS,
    TORCHS,
    compare_with_torch,
    cut,
    lose_a_worker,
)
from rank_processes import Processes


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
