"""Ranks that hang, and leaving in the middle of a long step."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from oakum_client.rest.client import OakumClient
from running_service import (
    RunningService,
    formed_messages,
    nodes_of_fragments,
    small_spec,
    wait_for_generation,
    wait_for_size,
    wait_for_steps,
)
from waiting import DEADLINE_S, wait_until


def endless(name: str = "elastic", **fields: object):  # type: ignore[no-untyped-def]
    """The spec of a trainer that outlasts any test and hardly ever writes a durable checkpoint."""
    return small_spec(name, epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def test_whoever_is_silent_is_given_up_and_whoever_could_not_be_heard_is_not(service: RunningService) -> None:
    """A rank, a node, the service. A stopped process closes no connection and answers nothing, so only its silence
    shows that it hangs."""
    service.configure(
        OAKUM_RANK_TIMEOUT_S="6",
        OAKUM_HEARTBEAT_TIMEOUT_S="8",
        OAKUM_LEAVE_DEADLINE_S="2",
        OAKUM_LOCAL_GRACE_S="600",
    )
    client = service.start()
    client.submit(endless(max_nodes=3))
    wait_for_size(client, "elastic", 3)
    a_rank_that_hangs_is_found_and_started_anew_on_its_node(service, client)
    a_node_that_comes_back_after_it_was_given_up_is_sent_away(service, client)
    with_the_service_hung_a_fragment_that_has_to_leave_does(service, client)
    a_service_that_hung_for_long_does_not_take_its_agents_for_dead(service, client)
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]


def a_rank_that_hangs_is_found_and_started_anew_on_its_node(service: RunningService, client: OakumClient) -> None:
    before = client.trainer("elastic")
    fragment, rank = list(service.ranks().items())[-1]
    rank.suspend()
    wait_for_generation(client, "elastic", before.generation, nodes=3)
    assert not rank.is_running()
    assert set(service.agents()) == set(service.ranks())
    assert fragment in service.ranks()


def a_node_that_comes_back_after_it_was_given_up_is_sent_away(
    service: RunningService, client: OakumClient
) -> None:
    """The node's agent and rank are stopped, as on a node that swaps; nothing waits for the node, and nothing
    kills its processes."""
    before = client.trainer("elastic")
    fragment, rank = next(iter(service.ranks().items()))
    agent = service.agents()[fragment]
    agent.suspend()
    rank.suspend()
    wait_for_generation(client, "elastic", before.generation)
    for process in (rank, agent):
        process.resume()
    _, alive = psutil.wait_procs([agent, rank], timeout=DEADLINE_S)
    assert alive == []
    wait_for_generation(client, "elastic", before.generation, nodes=3)


def with_the_service_hung_a_fragment_that_has_to_leave_does(service: RunningService, client: OakumClient) -> None:
    """The agent leaves within its deadline, long before its grace ends, although the service does not answer."""
    before = client.trainer("elastic")
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    agent = next(iter(service.agents().values()))
    agent.send_signal(signal.SIGTERM)
    try:
        gone, _ = psutil.wait_procs([agent], timeout=60.0)
    finally:
        service.process.send_signal(signal.SIGCONT)
    assert gone == [agent]
    wait_for_generation(client, "elastic", before.generation, nodes=3)


def a_service_that_hung_for_long_does_not_take_its_agents_for_dead(
    service: RunningService, client: OakumClient
) -> None:
    """While the service was stopped, no agent could report to it."""
    before, ranks = client.trainer("elastic"), service.ranks()
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    time.sleep(11.0)  # longer than the timeout: the passing of time is what is tested
    service.process.send_signal(signal.SIGCONT)
    wait_for_steps(client, "elastic")
    assert service.ranks() == ranks
    assert client.trainer("elastic").generation == before.generation


def test_a_step_that_never_ends_is_broken_off_and_repeated(shared_service: RunningService, tmp_path: Path) -> None:
    client = shared_service.client()
    arguments = {"folder": str(tmp_path)}
    client.submit(
        endless(
            "hangs-once",
            entrypoint="small_task:once_hanging_task",
            rehearsal=False,
            arguments=arguments,
            max_nodes=2,
            step_timeout_s=5.0,
        )
    )
    wait_until("a step hangs", (tmp_path / "hung").exists)
    wait_until("training goes on", lambda: client.trainer("hangs-once").step > 60)
    warnings = [e.message for e in client.recent_events(500).events if e.subject == "hangs-once"]
    assert any("step_timeout_s" in warning for warning in warnings)


def test_a_killed_rank_on_a_single_node_goes_on_from_the_nodes_memory(
    shared_service: RunningService, tmp_path: Path
) -> None:
    """Killed in the middle of a step: while a copy is written there is none, as copies are made in place."""
    client = shared_service.client()
    client.submit(
        small_spec(
            "single",
            rehearsal=False,
            entrypoint="small_task:stalling_task",
            arguments={"folder": str(tmp_path), "after": 20, "stall_s": 600.0},
            epochs=100_000,
            checkpoint={"every_s": 3600.0, "hot_every_steps": 1},
            max_nodes=1,
        )
    )
    wait_until("a long step has begun", lambda: list(tmp_path.glob("stalls-*")))
    next(iter(shared_service.ranks().values())).kill()
    (tmp_path / "on").touch()
    wait_until("it goes on", lambda: len(formed_messages(client, "single")) == 2)
    found = formed_messages(client, "single")[-1]
    assert "memory" in found
    # How new the copy is follows from how long one takes: they may take a hundredth of the time.
    assert 0 < int(found.split("at step ")[1].split()[0]) <= 20
    wait_until("it trains", lambda: client.trainer("single").step > 70)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR2, marks=pytest.mark.soak)])
def test_the_last_replica_leaves_within_a_long_step_and_loses_nothing(
    shared_service: RunningService, tmp_path: Path, number: signal.Signals
) -> None:
    """The fragment waits neither for its step, which takes longer than all limits, nor for the end of the
    grace."""
    client, name = shared_service.client(), f"last-{number.name.lower()}"
    arguments = {"folder": str(tmp_path), "after": 20, "stall_s": 600.0}
    client.submit(
        endless(name, rehearsal=False, entrypoint="small_task:stalling_task", arguments=arguments, max_nodes=1)
    )
    wait_until("a long step has begun", lambda: list(tmp_path.glob("stalls-*")))
    agent = next(iter(shared_service.agents().values()))
    began_s = time.monotonic()
    agent.send_signal(number)
    gone, _ = psutil.wait_procs([agent], timeout=90.0)
    took_s = time.monotonic() - began_s
    assert gone == [agent]
    assert took_s < 50.0
    wait_until("it resumes", lambda: len(formed_messages(client, name)) == 2)
    assert "resumes from its checkpoint at step 20" in formed_messages(client, name)[-1]
    (tmp_path / "on").touch()


def test_all_nodes_leaving_at_once_in_a_long_step_lose_nothing(
    shared_service: RunningService, tmp_path: Path
) -> None:
    """The saver does not wait for the step, and the other fragment waits for the saver no longer than it may."""
    client = shared_service.client()
    arguments = {"folder": str(tmp_path), "after": 40, "stall_s": 600.0}
    client.submit(
        endless(
            "all-leave",
            rehearsal=False,
            entrypoint="small_task:stalling_task",
            arguments=arguments,
            max_nodes=2,
            min_nodes=2,
        )
    )
    wait_until("a long step has begun", lambda: len(list(tmp_path.glob("stalls-*"))) == 2)
    agents = list(shared_service.agents().values())
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(agents, timeout=90.0)
    assert alive == []
    wait_until("it resumes", lambda: len(formed_messages(client, "all-leave")) == 2)
    assert "resumes from its checkpoint at step 40" in formed_messages(client, "all-leave")[-1]
    (tmp_path / "on").touch()


def test_a_node_taken_while_a_rank_that_was_killed_joins_again_loses_no_step(
    shared_service: RunningService, tmp_path: Path
) -> None:
    """Only the node that is taken has the state: the restarted rank has formed no generation yet."""
    client = shared_service.client()
    gate = tmp_path / "gate"
    client.submit(
        small_spec(
            "joins-again",
            rehearsal=False,
            entrypoint="small_task:paced_task",
            arguments={"gate": str(gate), "step_s": 10.0},
            epochs=100_000,
            checkpoint={"every_s": 3600.0},
            max_nodes=2,
        )
    )
    view = wait_for_size(client, "joins-again", 2)
    victim, survivor = (
        next(fragment for fragment, node in nodes_of_fragments(client).items() if node == view.nodes[at])
        for at in (0, 1)
    )
    shared_service.ranks()[victim].kill()
    wait_until(
        "it is to join again",
        lambda: (now := client.trainer("joins-again")).generation > view.generation and len(now.nodes) == 2,
    )
    shared_service.agents()[survivor].send_signal(signal.SIGTERM)
    gate.touch()
    before = len(formed_messages(client, "joins-again"))
    wait_until("it trains on", lambda: len(formed_messages(client, "joins-again")) > max(before, 2))
    assert not [message for message in formed_messages(client, "joins-again")[1:] if "begins" in message]
    assert client.trainer("joins-again").step >= view.step
