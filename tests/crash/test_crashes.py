"""`kill -9` of everything that can be killed: no orphan, no double launch, no finished step lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from oakum_service.api.schemas.trainers import TrainerView
from oakum_service.states import TrainerState
from oakum_worker.fragment.forking import node_has_accelerator
from oakum_worker.spec import read_spec
from processes import runs
from receiver import Receiver
from running_service import (
    EXAMPLES,
    SEVERAL_STARTS_S,
    RunningService,
    events_of,
    formed_messages,
    gated,
    nodes_of_fragments,
    small_spec,
    state_of,
    train_alone,
    wait_for_generation,
    wait_for_size,
    wait_for_steps,
)
from waiting import DEADLINE_S, wait_until


def endless(name: str = "elastic", **fields: object):  # type: ignore[no-untyped-def]
    """The spec of a trainer that outlasts any test and hardly ever writes a durable checkpoint."""
    return small_spec(name, epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def test_a_service_that_is_killed_again_and_again_is_missed_by_nobody(
    service: RunningService,
) -> None:
    receiver = Receiver()
    receiver.statuses = [503] * 1000
    try:
        service.configure(OAKUM_NOTICES_ALLOW='["127.0.0.1"]', OAKUM_NOTICES_RETRY_S="0.05")
        service.start()
        killed_at_any_moment_no_node_has_two_fragments(service)
        told_in_vain = a_notice_that_cannot_be_delivered(service, receiver)
        ranks_train_on_and_the_successor_takes_them_over(service)
        receiver.statuses = []
        the_notice_is_delivered_under_its_one_id(service, receiver, told_in_vain)
    finally:
        receiver.close()
    what_no_record_tells_of_is_ended(service)


def killed_at_any_moment_no_node_has_two_fragments(service: RunningService) -> None:
    """While fragments are launched, and while they warm up."""
    service.client().submit(endless(max_nodes=3))
    for wanted in (1, 3):
        wait_until("fragments are being launched", lambda wanted=wanted: len(service.agents()) >= wanted)
        service.kill()
        client = service.start()
    wait_for_size(client, "elastic", 3)
    nodes = [node.name for node in client.nodes().nodes if node.trainer == "elastic"]
    assert len(service.agents()) == len(service.ranks()) == len(nodes) == 3
    assert sorted(nodes_of_fragments(client).values()) == sorted(nodes)


def a_notice_that_cannot_be_delivered(service: RunningService, receiver: Receiver) -> int:
    """Returns how often it was tried."""
    client = service.client()
    client.submit(
        endless("told", min_nodes=64, max_nodes=64, notify=[{"webhook": receiver.url, "on": ["cancelled"]}])
    )
    client.cancel("told")
    wait_until("a first try", lambda: receiver.requests)
    return len(receiver.requests)


def ranks_train_on_and_the_successor_takes_them_over(service: RunningService) -> None:
    """It has a fork server of its own; that of the killed one ends."""
    before, ranks = service.client().trainer("elastic"), service.ranks()
    server = None if node_has_accelerator() else wait_until("a fork server stands", service.fork_server)
    service.kill()
    assert server is None or not runs(server.pid, patience_s=DEADLINE_S)
    assert service.ranks() == ranks

    client = service.start()
    wait_for_steps(client, "elastic")
    after = client.trainer("elastic")
    assert service.ranks() == ranks
    assert after.generation == before.generation
    assert after.nodes == before.nodes
    if server is not None:
        assert wait_until("another one stands", service.fork_server).pid != server.pid


def the_notice_is_delivered_under_its_one_id(service: RunningService, receiver: Receiver, tried: int) -> None:
    client = service.client()
    wait_until("it is taken", lambda: client.notices().notices[0].sent_at)
    assert len(receiver.requests) > tried
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 1
    assert receiver.documents()[-1]["message"] == "cancelled by its user"


def what_no_record_tells_of_is_ended(service: RunningService) -> None:
    """The database does not know these fragments any more, and some of their agents hang, so they cannot be
    told to leave."""
    service.kill()
    for agent in list(service.agents().values())[:1]:
        agent.suspend()
    for leftover in service.data_dir.glob("oakum.db*"):
        leftover.unlink()
    service.configure(OAKUM_LOCAL_GRACE_S="5")
    client = service.start()
    wait_until("every orphan has ended", lambda: not service.ranks() and not service.agents())
    assert client.trainers().trainers == []


def test_a_trainer_that_ends_while_no_service_runs_is_told_of_as_it_ended(
    service: RunningService, tmp_path: Path
) -> None:
    spec = read_spec(EXAMPLES / "digits-classifier.yaml").model_copy(update={"epochs": 10, "max_nodes": 2})
    gate = tmp_path / "gate"
    client = service.start()
    client.submit(gated(spec, gate, 1.0))
    wait_for_size(client, spec.name, 2)
    service.kill()
    gate.touch()
    wait_until("its ranks have ended", lambda: not service.ranks())
    assert len(service.agents()) == 2, "they have something to tell"
    client = service.start()
    wait_until("the service knows", lambda: state_of(client, spec.name).ended)
    view, alone = client.trainer(spec.name), train_alone(spec, tmp_path)
    assert (view.state, view.step) == (TrainerState.FINISHED, alone["steps"])
    assert view.loss == pytest.approx(alone["loss"], abs=1e-3)
    assert [each.step for each in client.evaluations(spec.name)] == [view.step // 2, view.step]
    assert len(events_of(client, "fragment.launched")) == 2
    wait_until("its agents leave", lambda: not service.agents())


@pytest.mark.parametrize("victim", ["first", pytest.param("last", marks=pytest.mark.soak)])
def test_killed_ranks_and_agents_cost_no_finished_step(shared_service: RunningService, victim: str) -> None:
    client, name = shared_service.client(), f"loses-its-{victim}"
    client.submit(endless(name))
    view = wait_for_size(client, name, 4)
    one_rank_that_is_killed(shared_service, view, at=0 if victim == "first" else -1)
    several_agents_that_are_killed_at_once(shared_service, client.trainer(name))
    assert not [message for message in formed_messages(client, name)[1:] if "goes on" not in message]
    view = client.trainer(name)
    assert sum(view.steps_at_size.values()) == view.step


def one_rank_that_is_killed(service: RunningService, view: TrainerView, at: int) -> None:
    """Also rank 0. Without a durable checkpoint only a survivor's state can carry training on.

    Of four ranks one is no neighbour of the dead one and sees no broken connection: it has to be freed.
    """
    client = service.client()
    nodes = nodes_of_fragments(client)
    fragment = next(fragment for fragment, node in nodes.items() if node == view.nodes[at])
    service.ranks()[fragment].kill()
    wait_for_generation(client, view.name, view.generation, nodes=4)


def several_agents_that_are_killed_at_once(service: RunningService, view: TrainerView) -> None:
    client = service.client()
    nodes = nodes_of_fragments(client)
    survivor = next(fragment for fragment, node in nodes.items() if node == view.nodes[2])
    for fragment, agent in service.agents().items():
        if fragment != survivor:
            agent.kill()
    wait_for_generation(client, view.name, view.generation, nodes=4)


def test_a_trainer_whose_every_fragment_dies_is_failed_instead_of_launched_for_ever(
    shared_service: RunningService,
) -> None:
    client = shared_service.client()
    client.submit(endless("doomed", entrypoint="small_task:killed_task", max_nodes=1))
    wait_until("it fails", lambda: state_of(client, "doomed") is TrainerState.FAILED, SEVERAL_STARTS_S)
    assert "oakum logs doomed" in client.trainer("doomed").message
