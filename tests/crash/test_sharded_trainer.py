"""A sharded trainer through the real service: no rank has the whole state, and training is the same."""

from __future__ import annotations

from pathlib import Path

import torch

from running_service import RunningService, formed_messages, small_spec, wait_for_generation, wait_for_size
from waiting import wait_until
from whole_scenario import ends_as_one_process_does, train_through_changes

torch.set_num_threads(1)


def test_a_sharded_trainer_grows_shrinks_loses_a_rank_and_ends_as_a_lone_one_does(
    shared_service: RunningService, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    spec = small_spec(
        "sharded",
        entrypoint="small_task:paced_task",
        epochs=10,
        max_nodes=3,
        parallel={"data": "sharded"},
        arguments={"gate": str(gate), "step_s": 2.0},
        checkpoint={"every_s": 3600.0, "hot_every_steps": 2},
    )
    found = train_through_changes(shared_service, spec, gate)
    ends_as_one_process_does(found, spec)
    formed = formed_messages(shared_service.client(), "sharded")
    sources = {message.split(": ")[1].split(" at step")[0] for message in formed[1:]}
    assert sources <= {"goes on", "goes on from a copy in memory", "resumes from its checkpoint"}


def test_of_a_sharded_trainer_only_the_rank_that_hangs_is_started_anew(service: RunningService) -> None:
    """The other ranks wait for the hung one in a step, for longer than a step may take, and have copies of its
    part."""
    service.configure(OAKUM_RANK_TIMEOUT_S="6")
    client = service.start()
    client.submit(
        small_spec(
            "sharded",
            epochs=100_000,
            max_nodes=3,
            parallel={"data": "sharded"},
            step_timeout_s=5.0,
            checkpoint={"every_s": 3600.0, "hot_every_steps": 5},
        )
    )
    full = wait_for_size(client, "sharded", 3)
    wait_until("copies are in memory", lambda: client.trainer("sharded").step > full.step + 20)
    ranks = service.ranks()
    before = client.trainer("sharded")
    hanging = list(ranks.values())[-1]
    hanging.suspend()
    first_after = wait_for_generation(client, "sharded", before.generation)
    assert first_after.message.split(": ")[1].split(" at step")[0] in ("goes on", "goes on from a copy in memory")
    assert [rank for rank in ranks.values() if not rank.is_running()] == [hanging]
