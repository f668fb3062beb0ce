"""A pipeline trainer through the real service: its stages come and go, and training is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from running_service import RunningService, small_spec, wait_for_generation, wait_for_size
from waiting import wait_until

torch.set_num_threads(1)


def layered_spec(**changes: Any) -> TrainerSpec:
    fields = {
        "entrypoint": "small_task:layered_task",
        "epochs": 24,
        "max_nodes": 3,
        "parallel": {"pipeline": {"stages": 3, "schedule": "1f1b", "micro_batch": 24}},
        "checkpoint": {"every_s": 3600.0, "hot_every_steps": 5},
    }
    return small_spec("layered", **(fields | changes))


def test_a_pipeline_grows_shrinks_loses_a_rank_and_ends_as_a_lone_one_does(
    service: RunningService, tmp_path: Path
) -> None:
    spec = layered_spec(arguments={"folder": str(tmp_path), "step_s": 0.06})
    client = service.start()
    client.submit(spec)
    full = wait_for_size(client, "layered", 3)
    next(iter(service.ranks().values())).kill()
    again = wait_for_generation(client, "layered", full.generation, nodes=3)
    service.take_nodes(2, run_s=1.0)
    shrunk = wait_for_generation(client, "layered", again.data["generation"])
    assert len(shrunk.data["nodes"]) < 3
    (tmp_path / "gate").touch()
    wait_until("it finishes", lambda: client.trainer("layered").state.ended)
    found = client.trainer("layered")
    assert found.state is TrainerState.FINISHED, found.message

    alone = TrainingLoop(load_task(spec.model_copy(update={"arguments": {"step_s": 0.0}})), spec)
    while not alone.finished:
        loss = alone.step().loss
    assert found.step == alone.step_count
    assert found.loss == pytest.approx(loss, rel=1e-9)


def test_of_a_pipeline_only_the_stage_that_hangs_is_started_anew(service: RunningService, tmp_path: Path) -> None:
    """The other ranks wait for the hung one in the middle of a step, and have copies of its layers."""
    client = service.start()
    client.submit(layered_spec(arguments={"folder": str(tmp_path)}, epochs=100_000, step_timeout_s=10.0))
    full = wait_for_size(client, "layered", 3)
    wait_until("copies are in memory", lambda: client.trainer("layered").step > full.step + 20)
    ranks = service.ranks()
    before = client.trainer("layered")
    (tmp_path / "hang").touch()
    found = wait_until("a stage hangs", lambda: list(tmp_path.glob("hangs-*")))
    hanging: psutil.Process = next(
        rank for rank in ranks.values() if rank.pid == int(found[0].name.removeprefix("hangs-"))
    )
    wait_for_generation(client, "layered", before.generation)
    assert [rank for rank in ranks.values() if not rank.is_running()] == [hanging]
