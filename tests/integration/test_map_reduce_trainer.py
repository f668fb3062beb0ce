"""A trainer in rounds of MapReduce, through a real service and a real kill -9."""

from __future__ import annotations

from pathlib import Path

from counting_rounds import counting_task, spec_fields
from oakum_service.states import TrainerState
from oakum_worker.step.training_loop import TrainingLoop
from running_service import TASKS, RunningService, small_spec, wait_for_generation, wait_for_size
from waiting import wait_until

NAME = "counting"


def test_it_is_killed_within_a_round_and_ends_with_the_bits_of_one_process(
    shared_service: RunningService, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    spec = small_spec(
        NAME,
        entrypoint="counting_rounds:paced_counting",
        epochs=30,
        max_nodes=2,
        workdir=str(TASKS.parent),
        arguments={"gate": str(gate), "map_s": 0.4},
        **spec_fields(),
    )
    client = shared_service.client()
    client.submit(spec)
    full = wait_for_size(client, NAME, 2)
    wait_until("it trains on two nodes", lambda: client.trainer(NAME).step > full.step + 1)
    next(iter(shared_service.ranks().values())).kill()
    wait_for_generation(client, NAME, full.generation)
    gate.touch()
    wait_until("it finishes", lambda: client.trainer(NAME).state.ended)
    found = client.trainer(NAME)
    assert found.state is TrainerState.FINISHED, found.message

    alone = TrainingLoop(counting_task(), spec)
    while not alone.finished:
        loss = alone.step().loss
    assert (found.step, found.loss) == (30, loss)
