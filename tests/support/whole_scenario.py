"""What a trainer of any strategy goes through at the real service: it grows, is killed, shrinks, and finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec
from oakum_worker.step.training_loop import TrainingLoop
from oakum_worker.task import load_task
from running_service import RunningService, wait_for_generation, wait_for_size
from waiting import wait_until


def train_through_changes(service: RunningService, spec: TrainerSpec, gate: Path) -> TrainerView:
    """Train `spec` on three of the four nodes of a service that runs and has no other trainer: kill a rank, take
    two nodes, create the file `gate`, which ends the slow steps, and let it finish. Returns the finished trainer.
    """
    client = service.client()
    client.submit(spec)
    full = wait_for_size(client, spec.name, 3)
    wait_until("it trains on three nodes", lambda: client.trainer(spec.name).step > full.step + 3)
    next(iter(service.ranks().values())).kill()
    again = wait_for_generation(client, spec.name, full.generation, nodes=3)
    service.take_nodes(2, run_s=10.0)  # about as long as the rest takes
    shrunk = wait_for_generation(client, spec.name, again.data["generation"])
    assert len(shrunk.data["nodes"]) < 3
    gate.touch()
    wait_until("it finishes", lambda: client.trainer(spec.name).state.ended)
    found = client.trainer(spec.name)
    assert found.state is TrainerState.FINISHED, found.message
    return found


def ends_as_one_process_does(found: TrainerView, alone: TrainerSpec) -> TrainingLoop:
    """Check that a finished trainer has the steps and the last loss of one process that trains `alone`. Returns
    the process's loop."""
    loop = TrainingLoop(load_task(alone), alone)
    while not loop.finished:
        loss = loop.step().loss
    assert found.step == loop.step_count
    assert found.loss == pytest.approx(loss, rel=1e-9)
    return loop
