"""A sharded trainer through the real service: no rank has the whole state, and training is the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_service.client import OakumClient
from oakum_service.states import TrainerState
from oakum_worker.task import load_task
from oakum_worker.trainer import TrainingLoop
from running_service import RunningService, small_spec, wait_for_size, wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("sharded")]


def formed_messages(client: OakumClient) -> list[str]:
    return [event.message for event in client.recent_events(500).events if event.kind == "generation.formed"]


def test_a_sharded_trainer_grows_shrinks_loses_a_rank_and_ends_as_a_lone_one_does(
    service: RunningService, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    spec = small_spec(
        "sharded",
        entrypoint="small_task:paced_task",
        epochs=60,
        max_nodes=3,
        parallel={"data": "sharded"},
        arguments={"gate": str(gate), "step_s": 0.2},
        checkpoint={"every_s": 3600.0, "hot_every_steps": 5},
    )
    client = service.start()
    client.submit(spec)
    before = wait_for_size(client, "sharded", 3)
    next(iter(service.ranks().values())).kill()
    wait_until("the others go on", lambda: client.trainer("sharded").step > before.step + 20)
    service.take_nodes(2, run_s=1.0)
    wait_until("it shrinks", lambda: len(client.trainer("sharded").nodes) < 3)
    gate.touch()
    wait_until("it finishes", lambda: client.trainer("sharded").state.ended, 180.0)
    found = client.trainer("sharded")
    assert found.state is TrainerState.FINISHED, found.message

    alone = TrainingLoop(load_task(spec), spec)
    while not alone.finished:
        loss = alone.step().loss
    assert found.step == alone.step_count
    assert found.loss == pytest.approx(loss, rel=1e-9)
    sources = {message.split(": ")[1].split(" at step")[0] for message in formed_messages(client)[1:]}
    assert sources <= {"goes on", "goes on from a copy in memory", "resumes from its checkpoint"}


def test_of_a_sharded_trainer_only_the_rank_that_hangs_is_started_anew(service: RunningService) -> None:
    """All others wait for it in the middle of a step, and have the copies of its part."""
    client = service.start()
    client.submit(
        small_spec(
            "sharded",
            epochs=100_000,
            max_nodes=3,
            parallel={"data": "sharded"},
            step_timeout_s=3.0,
            checkpoint={"every_s": 3600.0, "hot_every_steps": 5},
        )
    )
    full = wait_for_size(client, "sharded", 3)
    wait_until("copies are in memory", lambda: client.trainer("sharded").step > full.step + 20)
    ranks = service.ranks()
    formed, before = len(formed_messages(client)), client.trainer("sharded").step
    hanging = list(ranks.values())[-1]
    hanging.suspend()
    wait_until("the others train on", lambda: client.trainer("sharded").step > before + 20)
    first_after = formed_messages(client)[formed]
    assert first_after.split(": ")[1].split(" at step")[0] in ("goes on", "goes on from a copy in memory")
    assert [rank for rank in ranks.values() if not rank.is_running()] == [hanging]
