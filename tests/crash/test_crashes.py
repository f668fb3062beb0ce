"""`kill -9` of everything that can be killed: no orphan, no double launch, no finished step lost."""

from __future__ import annotations

import signal
import time

import psutil
import pytest

from oakum_service.states import TrainerState
from running_service import (
    SEVERAL_STARTS_S,
    RunningService,
    formed_messages,
    nodes_of_fragments,
    small_spec,
    state_of,
    wait_for_generation,
    wait_for_size,
    wait_for_steps,
)
from waiting import wait_until


def endless(name: str = "elastic", **fields: object):  # type: ignore[no-untyped-def]
    """The spec of a trainer that outlasts any test and hardly ever writes a durable checkpoint."""
    return small_spec(name, epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def test_a_killed_service_leaves_training_running_and_its_successor_takes_it_over(
    service: RunningService,
) -> None:
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    before, ranks = client.trainer("elastic"), service.ranks()
    service.kill()
    assert service.ranks() == ranks

    client = service.start()
    wait_for_steps(client, "elastic")
    after = client.trainer("elastic")
    assert service.ranks() == ranks
    assert after.generation == before.generation
    assert after.nodes == before.nodes


def test_what_a_crash_left_behind_without_a_record_is_ended(service: RunningService) -> None:
    """The database does not know these fragments any more, and half of their agents hang, so they cannot be
    told to leave."""
    service.configure(OAKUM_LOCAL_GRACE_S="5")
    client = service.start()
    client.submit(endless(max_nodes=2))
    wait_for_size(client, "elastic", 2)
    service.kill()
    for agent in list(service.agents().values())[:1]:
        agent.suspend()
    for leftover in service.data_dir.glob("oakum.db*"):
        leftover.unlink()
    client = service.start()
    wait_until("every orphan has ended", lambda: not service.ranks() and not service.agents())
    assert client.trainers().trainers == []


def test_no_node_ever_has_two_fragments_after_crashes_at_any_moment(service: RunningService) -> None:
    """Killed while fragments are launched, while they warm up and while they train."""
    client = service.start()
    client.submit(endless())
    for wanted in (1, 3, 4):
        wait_until("fragments are being launched", lambda wanted=wanted: len(service.agents()) >= wanted)
        service.kill()
        client = service.start()
    wait_for_size(client, "elastic", 4)
    nodes = [node.name for node in client.nodes().nodes if node.trainer == "elastic"]
    assert len(service.agents()) == len(service.ranks()) == len(nodes) == 4
    assert sorted(nodes_of_fragments(client).values()) == sorted(nodes)


@pytest.mark.parametrize("victim", ["first", pytest.param("last", marks=pytest.mark.soak)])
def test_a_killed_rank_costs_no_finished_step(service: RunningService, victim: str) -> None:
    """Also rank 0. Without a durable checkpoint only a survivor's state can carry training on.

    Of four ranks one is no neighbour of the dead one and sees no broken connection: it has to be freed.
    """
    client = service.start()
    client.submit(endless())
    view = wait_for_size(client, "elastic", 4)
    nodes = nodes_of_fragments(client)
    killed = view.nodes[0] if victim == "first" else view.nodes[-1]
    fragment = next(fragment for fragment, node in nodes.items() if node == killed)
    service.ranks()[fragment].kill()
    wait_for_generation(client, "elastic", view.generation, nodes=4)
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]
    view = client.trainer("elastic")
    assert sum(view.steps_at_size.values()) == view.step


def test_several_killed_agents_at_once_cost_no_finished_step(service: RunningService) -> None:
    client = service.start()
    client.submit(endless())
    view = wait_for_size(client, "elastic", 4)
    agents = service.agents()
    survivor = next(i.fragment for i in client.timeline(600).fragments if i.node == view.nodes[2])
    for fragment, agent in agents.items():
        if fragment != survivor:
            agent.kill()
    wait_for_generation(client, "elastic", view.generation, nodes=4)
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]


def test_with_the_service_hung_a_foreground_job_still_gets_its_node(service: RunningService) -> None:
    """The agent leaves within its deadline, long before its grace ends, although the service does not answer."""
    service.configure(OAKUM_LEAVE_DEADLINE_S="1", OAKUM_LOCAL_GRACE_S="600")
    client = service.start()
    client.submit(endless(max_nodes=2))
    before = wait_for_size(client, "elastic", 2)
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    agent = next(iter(service.agents().values()))
    agent.send_signal(signal.SIGTERM)
    try:
        gone, _ = psutil.wait_procs([agent], timeout=60.0)
    finally:
        service.process.send_signal(signal.SIGCONT)
    assert gone == [agent]
    wait_for_generation(client, "elastic", before.generation, nodes=2)


def test_a_service_that_hung_for_long_does_not_take_its_agents_for_dead(service: RunningService) -> None:
    """While the service was stopped, no agent could report to it."""
    service.configure(OAKUM_HEARTBEAT_TIMEOUT_S="6")
    client = service.start()
    client.submit(endless(max_nodes=2))
    before, ranks = wait_for_size(client, "elastic", 2), service.ranks()
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    time.sleep(9.0)  # longer than the timeout: the passing of time is what is tested
    service.process.send_signal(signal.SIGCONT)
    wait_for_steps(client, "elastic")
    assert service.ranks() == ranks
    assert client.trainer("elastic").generation == before.generation


def test_a_trainer_whose_every_fragment_dies_is_failed_instead_of_launched_for_ever(
    service: RunningService,
) -> None:
    client = service.start()
    client.submit(endless("doomed", entrypoint="small_task:killed_task", max_nodes=1))
    wait_until("it fails", lambda: state_of(client, "doomed") is TrainerState.FAILED, SEVERAL_STARTS_S)
    assert "oakum logs doomed" in client.trainer("doomed").message
