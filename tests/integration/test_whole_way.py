"""The whole way with a real service: scheduler state in, plan, launch, training that rescales and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oakum_client.rest.client import OakumClient
from oakum_service.states import TrainerState
from oakum_worker.spec import read_spec
from running_service import (
    EXAMPLES,
    RunningService,
    gated,
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


def test_the_classifier_on_holes_ends_as_an_uninterrupted_run_does(
    shared_service: RunningService, tmp_path: Path
) -> None:
    """Through three sizes, losing and regaining nodes: at least 95 % on held-out digits, and the same loss."""
    spec = read_spec(EXAMPLES / "digits-classifier.yaml").model_copy(update={"epochs": 10, "max_nodes": 3})
    gate = tmp_path / "gate"
    client = shared_service.client()
    client.submit(gated(spec, gate, 2.0))
    full = wait_for_size(client, spec.name, 3)
    shared_service.take_nodes(2, run_s=4.0)
    half = wait_for_generation(client, spec.name, full.generation, nodes=2)
    again = wait_for_generation(client, spec.name, half.data["generation"], nodes=3)
    shared_service.take_nodes(3, run_s=10.0)  # about as long as the rest takes
    wait_for_generation(client, spec.name, again.data["generation"], nodes=1)
    gate.touch()
    wait_until("the classifier ends", lambda: state_of(client, spec.name).ended)
    view = client.trainer(spec.name)
    alone = train_alone(spec, tmp_path)
    assert view.state is TrainerState.FINISHED, view.message
    assert view.step == view.total_steps == alone["steps"]
    assert len(view.steps_at_size) >= 3
    assert view.nodes_lost >= 3
    assert view.metrics["accuracy"] >= 0.95
    evaluations = client.evaluations(spec.name)
    assert [each.step for each in evaluations] == [view.step * epoch // 10 for epoch in (5, 10)]
    assert evaluations[-1].metrics == view.metrics
    assert view.loss == pytest.approx(alone["loss"], abs=1e-3)


def wait_for_foreground_job(client: OakumClient, number: int = 1) -> None:
    """Wait until so many foreground jobs have started. `bench/give_back.py` measures how soon one starts on a
    quiet machine."""
    wait_until("the job has started", lambda: client.cluster().foreground_jobs_started >= number)


def test_fragments_that_are_not_forked_give_way_resume_and_end_with_the_service(service: RunningService) -> None:
    """As on Slurm and on nodes with GPUs: each is a process of its own, which takes seconds of CPU time for its
    imports."""
    service.configure(OAKUM_LOCAL_NODES="1", OAKUM_LOCAL_FORK_SERVER="false", **_NO_LIMITS)
    client = service.start()
    client.submit(small_spec("elastic", epochs=100_000))
    a_job_that_comes_while_a_fragment_starts_does_not_wait(service, client)
    wait_for_size(client, "elastic", 1)
    without_any_node_it_waits_and_resumes_where_it_was(service, client)
    an_interrupted_service_ends_everything_and_the_next_one_resumes(service)


def a_job_that_comes_while_a_fragment_starts_does_not_wait(service: RunningService, client: OakumClient) -> None:
    """SIGTERM reaches the fragment's processes when these have hardly begun."""
    wait_until("a fragment is being launched", service.agents)
    service.take_nodes(1, run_s=0.5)
    wait_for_foreground_job(client)


def without_any_node_it_waits_and_resumes_where_it_was(service: RunningService, client: OakumClient) -> None:
    service.take_nodes(1, run_s=8.0)  # long enough to be looked at, however busy the machine is
    wait_until("it waits", lambda: state_of(client, "elastic") is TrainerState.WAITING)
    # The trainer waits from the decision on; its replicas go on until they have left the nodes.
    wait_for_foreground_job(client, number=2)
    before: Any = wait_until(
        "its last replica has written a checkpoint",
        lambda: (view := client.trainer("elastic")).checkpoint_step == view.step and view,
    )
    resumed = wait_until("it resumes", lambda: resumptions(client))
    assert [f"step {before.step:,} " in message for message in resumed] == [True]
    wait_until("it goes on", lambda: client.trainer("elastic").step > before.step > 0)


def an_interrupted_service_ends_everything_and_the_next_one_resumes(service: RunningService) -> None:
    service.interrupt()
    assert service.processes() == []
    assert service.process is not None
    assert service.process.returncode == 0
    service.configure(OAKUM_LOCAL_FORK_SERVER="true")  # how it resumes is the same, and cheaper
    client = service.start()
    stopped_at = client.trainer("elastic").step
    wait_until("it goes on", lambda: client.trainer("elastic").step > stopped_at)
    assert f"at step {stopped_at:,} " in resumptions(client)[-1]


def resumptions(client: OakumClient) -> list[str]:
    events = client.recent_events(500).events
    return [event.message for event in events if "resumes from its checkpoint" in event.message]


def test_a_trainer_that_cannot_be_built_fails_with_what_to_change(shared_service: RunningService) -> None:
    """And the service goes on to train others."""
    client = shared_service.client()
    expected = {
        "nowhere:task": "nowhere",
        "small_task:tusk": "task",
        "small_task:broken_task": "the data set is not where it was",
    }
    names = {entrypoint: f"broken-{number}" for number, entrypoint in enumerate(expected)}
    for entrypoint, name in names.items():
        client.submit(small_spec(name, entrypoint=entrypoint, max_nodes=1))
    client.submit(small_spec("healthy", max_nodes=1, epochs=2))
    for entrypoint, name in names.items():
        wait_until(f"{entrypoint} fails", lambda name=name: state_of(client, name) is TrainerState.FAILED)
        assert expected[entrypoint] in client.trainer(name).message
    wait_until("the service trains others", lambda: state_of(client, "healthy") is TrainerState.FINISHED)
