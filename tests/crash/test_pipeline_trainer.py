"""A pipeline trainer through the real service: its stages come and go, and training is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import torch

from oakum_worker.spec import TrainerSpec
from running_service import RunningService, small_spec, wait_for_generation, wait_for_size
from waiting import wait_until
from whole_scenario import ends_as_one_process_does, train_through_changes

torch.set_num_threads(1)


def layered_spec(name: str, **changes: Any) -> TrainerSpec:
    fields = {
        "entrypoint": "small_task:layered_task",
        "epochs": 10,
        "max_nodes": 3,
        "parallel": {"pipeline": {"stages": 3, "schedule": "1f1b", "micro_batch": 24}},
        "checkpoint": {"every_s": 3600.0, "hot_every_steps": 5},
    }
    return small_spec(name, **(fields | changes))


def test_a_pipeline_grows_shrinks_loses_a_rank_and_ends_as_a_lone_one_does(
    shared_service: RunningService, tmp_path: Path
) -> None:
    spec = layered_spec("layered", arguments={"folder": str(tmp_path), "step_s": 0.16})
    found = train_through_changes(shared_service, spec, tmp_path / "gate")
    lone = spec.model_copy(update={"arguments": {"step_s": 0.0}, "parallel": type(spec.parallel)()})
    ends_as_one_process_does(found, lone)


def test_of_a_pipeline_only_the_stage_that_hangs_is_started_anew(
    shared_service: RunningService, tmp_path: Path
) -> None:
    """The other ranks wait for the hung one in the middle of a step, and have copies of its layers."""
    client = shared_service.client()
    client.submit(
        layered_spec("hanging", arguments={"folder": str(tmp_path)}, epochs=100_000, step_timeout_s=10.0)
    )
    full = wait_for_size(client, "hanging", 3)
    wait_until("copies are in memory", lambda: client.trainer("hanging").step > full.step + 20)
    ranks = shared_service.ranks()
    before = client.trainer("hanging")
    (tmp_path / "hang").touch()
    found = wait_until("a stage hangs", lambda: list(tmp_path.glob("hangs-*")))
    hanging: psutil.Process = next(
        rank for rank in ranks.values() if rank.pid == int(found[0].name.removeprefix("hangs-"))
    )
    wait_for_generation(client, "hanging", before.generation)
    assert [rank for rank in ranks.values() if not rank.is_running()] == [hanging]
