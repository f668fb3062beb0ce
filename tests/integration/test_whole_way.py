"""The whole way with a real service: scheduler state in, plan, launch, training that rescales and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oakum_service.client.oakum_client import OakumClient
from oakum_service.states import TrainerState
from oakum_worker.spec import read_spec
from running_service import (
    EXAMPLES,
    SEVERAL_STARTS_S,
    RunningService,
    small_spec,
    state_of,
    train_alone,
    wait_for_generation,
    wait_for_size,
)
from waiting import wait_until

_NEVER_S = "3600"
_NO_LIMITS = {
    "OAKUM_LOCAL_GRACE_S": _NEVER_S,
    "OAKUM_LEAVE_DEADLINE_S": _NEVER_S,
    "OAKUM_RANK_TIMEOUT_S": _NEVER_S,
    "OAKUM_HEARTBEAT_TIMEOUT_S": _NEVER_S,
}
"""With these a foreground job gets no node from a fragment that stays."""


@pytest.fixture
def processes_of_their_own(service: RunningService) -> None:
    """Start every fragment as a separate process, as on Slurm and on nodes with GPUs, instead of forking it.

    Each takes three seconds of CPU time for its imports.
    """
    service.configure(OAKUM_LOCAL_FORK_SERVER="false")


def test_the_classifier_on_holes_ends_as_an_uninterrupted_run_does(
    service: RunningService, tmp_path: Path
) -> None:
    """Through three sizes, losing and regaining nodes: at least 95 % on held-out digits, and the same loss."""
    spec = read_spec(EXAMPLES / "digits-classifier.yaml").model_copy(update={"epochs": 20})
    gate = tmp_path / "gate"
    paced = {"entrypoint": "paced_classifier:task", "arguments": {"gate": str(gate), "step_s": 1.0}}
    client = service.start()
    client.submit(spec.model_copy(update=paced))
    full = wait_for_size(client, spec.name, 4)
    service.take_nodes(2, run_s=4.0)
    half = wait_for_generation(client, spec.name, full.generation, nodes=2)
    again = wait_for_generation(client, spec.name, half.data["generation"], nodes=4)
    service.take_nodes(3, run_s=4.0)
    wait_for_generation(client, spec.name, again.data["generation"], nodes=1)
    gate.touch()
    wait_until("the classifier ends", lambda: state_of(client, spec.name).ended)
    view = client.trainer(spec.name)
    alone = train_alone(spec, tmp_path)
    assert view.state is TrainerState.FINISHED, view.message
    assert view.step == view.total_steps == alone["steps"]
    assert len(view.steps_at_size) >= 3
    assert view.nodes_lost >= 4
    assert view.metrics["accuracy"] >= 0.95
    evaluations = client.evaluations(spec.name)
    assert [each.step for each in evaluations] == [view.step * epoch // 20 for epoch in range(5, 21, 5)]
    assert evaluations[-1].metrics == view.metrics
    assert view.loss == pytest.approx(alone["loss"], abs=1e-3)


def wait_for_foreground_job(client: OakumClient) -> None:
    """Wait until a foreground job has started. `bench/give_back.py` measures how soon one starts on a quiet
    machine."""
    wait_until("the job has started", lambda: client.cluster().foreground_jobs_started)


def test_a_foreground_job_has_its_nodes_soon(service: RunningService) -> None:
    service.configure(**_NO_LIMITS)
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000, max_nodes=3))
    wait_for_size(client, "elastic", 3)
    service.take_nodes(3, run_s=2.0)
    wait_for_foreground_job(client)


@pytest.mark.usefixtures("processes_of_their_own")
def test_a_foreground_job_that_comes_while_fragments_start_does_not_wait_either(service: RunningService) -> None:
    """SIGTERM reaches the fragments' processes when these have hardly begun."""
    service.configure(**_NO_LIMITS)
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000))
    wait_until("fragments are being launched", lambda: len(service.agents()) == 4)
    service.take_nodes(4, run_s=0.5)
    wait_for_foreground_job(client)


@pytest.mark.usefixtures("processes_of_their_own")
def test_without_any_node_a_trainer_waits_and_resumes_where_it_was(service: RunningService) -> None:
    service.configure(OAKUM_LOCAL_NODES="1")
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000))
    wait_for_size(client, "elastic", 1)
    service.take_nodes(1, run_s=8.0)  # long enough to be looked at, however busy the machine is
    wait_until("it waits", lambda: state_of(client, "elastic") is TrainerState.WAITING)
    # The trainer waits from the decision on; its replicas go on until they have left the nodes.
    wait_for_foreground_job(client)
    before: Any = wait_until(
        "its last replica has written a checkpoint",
        lambda: (view := client.trainer("elastic")).checkpoint_step == view.step and view,
    )
    resumed = wait_until(
        "it resumes",
        lambda: [e for e in client.recent_events(500).events if "resumes from its checkpoint" in e.message],
    )
    assert [f"step {before.step} " in event.message for event in resumed] == [True]
    wait_until("it goes on", lambda: client.trainer("elastic").step > before.step > 0)


@pytest.mark.usefixtures("processes_of_their_own")
def test_interrupting_ends_everything_and_a_restart_resumes(service: RunningService) -> None:
    service.configure(OAKUM_LOCAL_NODES="2")
    client = service.start()
    sizes = {"first": 1, "second": 1}
    for name, size in sizes.items():
        client.submit(small_spec(name, epochs=100_000, min_nodes=size, max_nodes=size))
    for name, size in sizes.items():
        wait_for_size(client, name, size)
    service.interrupt()
    assert service.processes() == []
    assert service.process is not None
    assert service.process.returncode == 0

    client = service.start()
    stopped_at = {name: client.trainer(name).step for name in sizes}
    for name, step in stopped_at.items():
        wait_until(f"{name} goes on", lambda name=name, step=step: client.trainer(name).step > step)
        resumed = [
            e for e in client.recent_events(500).events if e.subject == name and "resumes from its" in e.message
        ]
        assert f"at step {step} " in resumed[-1].message


def test_a_cancelled_trainer_gives_its_nodes_to_the_others(service: RunningService) -> None:
    client = service.start()
    client.submit(small_spec("going", epochs=100_000, max_nodes=2, priority=1))
    client.submit(small_spec("staying", epochs=100_000))
    wait_for_size(client, "going", 2)
    wait_for_size(client, "staying", 2)
    client.cancel("going")
    wait_for_size(client, "staying", 4)
    assert state_of(client, "going") is TrainerState.CANCELLED


@pytest.mark.parametrize(
    ("entrypoint", "expected"),
    [
        ("nowhere:task", "nowhere"),
        ("small_task:tusk", "task"),
        ("small_task:broken_task", "the data set is not where it was"),
    ],
)
def test_a_trainer_that_cannot_be_built_fails_with_what_to_change(
    shared_service: RunningService, entrypoint: str, expected: str
) -> None:
    client = shared_service.client()
    number = len(client.trainers().trainers)
    broken, healthy = f"broken-{number}", f"healthy-{number}"
    client.submit(small_spec(broken, entrypoint=entrypoint, max_nodes=1))
    wait_until("it fails", lambda: state_of(client, broken) is TrainerState.FAILED)
    assert expected in client.trainer(broken).message
    client.submit(small_spec(healthy, max_nodes=1, epochs=2))
    wait_until("the service still trains others", lambda: state_of(client, healthy) is TrainerState.FINISHED)


@pytest.mark.usefixtures("processes_of_their_own")
def test_a_trainer_whose_step_always_raises_fails_and_says_why(service: RunningService) -> None:
    client = service.start()
    client.submit(small_spec("crashing", entrypoint="small_task:crashing_task", rehearsal=False, max_nodes=1))
    wait_until("it fails", lambda: state_of(client, "crashing") is TrainerState.FAILED, SEVERAL_STARTS_S)
    message = client.trainer("crashing").message
    assert "the same error twice at step 2" in message
    assert "points and labels disagree" in message
