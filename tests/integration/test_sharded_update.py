"""Weights that FSDP2 has split over ranks are updated as whole ones are."""

from __future__ import annotations

from rank_processes import Processes
from sharded_update_child import run


def test_clipping_lars_and_loss_scaling_see_through_shards() -> None:
    with Processes(2, run, 2) as processes:
        for found in processes.answers():
            assert found["moved"] > 0.01
            assert found["difference"] < 1e-12
            assert found["skipped"]
