"""Ranks that hang, and leaving in the middle of a long step."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from running_service import RunningService, formed_messages, small_spec, wait_for_generation, wait_for_size
from waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.xdist_group("hanging")


def endless(**fields: object):  # type: ignore[no-untyped-def]
    """A trainer that outlasts any test; durable checkpoints come too rarely to help it."""
    return small_spec("elastic", epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def test_a_rank_that_hangs_is_found_and_started_anew_on_its_node(service: RunningService) -> None:
    """Stopped, it closes no connection and answers nobody: only its silence tells."""
    service.configure(OAKUM_RANK_TIMEOUT_S="6")
    client = service.start()
    client.submit(endless(max_nodes=3))
    before = wait_for_size(client, "elastic", 3)
    fragment, rank = list(service.ranks().items())[-1]
    rank.suspend()
    wait_for_generation(client, "elastic", before.generation, nodes=3)
    assert not rank.is_running()
    assert set(service.agents()) == set(service.ranks())
    assert fragment in service.ranks()
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]


def test_a_node_that_comes_back_after_it_was_given_up_is_sent_away(service: RunningService) -> None:
    """Its agent and its rank are stopped, as on a node that swaps; nobody else waits for it, nor kills it."""
    service.configure(OAKUM_HEARTBEAT_TIMEOUT_S="8", OAKUM_LEAVE_DEADLINE_S="2", OAKUM_LOCAL_GRACE_S="600")
    client = service.start()
    client.submit(endless(max_nodes=2))
    before = wait_for_size(client, "elastic", 2)
    fragment, rank = next(iter(service.ranks().items()))
    agent = service.agents()[fragment]
    agent.suspend()
    rank.suspend()
    wait_for_generation(client, "elastic", before.generation)
    for process in (rank, agent):
        process.resume()
    _, alive = psutil.wait_procs([agent, rank], timeout=DEADLINE_S)
    assert alive == []
    wait_for_generation(client, "elastic", before.generation, nodes=2)
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]


def test_a_step_that_never_ends_is_broken_off_and_repeated(service: RunningService, tmp_path: Path) -> None:
    client = service.start()
    arguments = {"folder": str(tmp_path)}
    client.submit(
        endless(entrypoint="small_task:once_hanging_task", arguments=arguments, max_nodes=2, step_timeout_s=5.0)
    )
    wait_until("a step hangs", (tmp_path / "hung").exists)
    wait_until("training goes on", lambda: client.trainer("elastic").step > 60)
    warnings = [e.message for e in client.recent_events(500).events if e.kind == "trainer.warning"]
    assert any("step_timeout_s" in warning for warning in warnings)


def test_a_killed_rank_on_a_single_node_goes_on_from_the_nodes_memory(
    service: RunningService, tmp_path: Path
) -> None:
    """Killed in the middle of a step: while a copy is written there is none, as copies are made in place."""
    client = service.start()
    client.submit(
        small_spec(
            "elastic",
            entrypoint="small_task:stalling_task",
            arguments={"folder": str(tmp_path), "after": 20, "stall_s": 600.0},
            epochs=100_000,
            checkpoint={"every_s": 3600.0, "hot_every_steps": 1},
            max_nodes=1,
        )
    )
    wait_until("a long step has begun", lambda: list(tmp_path.glob("stalls-*")))
    next(iter(service.ranks().values())).kill()
    (tmp_path / "on").touch()
    wait_until("it goes on", lambda: len(formed_messages(client)) == 2)
    found = formed_messages(client)[-1]
    assert "memory" in found
    # How new the copy is follows from how long one takes: they may take a hundredth of the time.
    assert 0 < int(found.split("at step ")[1].split()[0]) <= 20
    wait_until("it trains", lambda: client.trainer("elastic").step > 70)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_the_last_replica_leaves_within_a_long_step_and_loses_nothing(
    service: RunningService, tmp_path: Path, number: signal.Signals
) -> None:
    """A step that outlasts all limits together is not waited for, nor the end of the grace."""
    client = service.start()
    arguments = {"folder": str(tmp_path), "after": 20, "stall_s": 600.0}
    client.submit(endless(entrypoint="small_task:stalling_task", arguments=arguments, max_nodes=1))
    wait_until("a long step has begun", lambda: list(tmp_path.glob("stalls-*")))
    agent = next(iter(service.agents().values()))
    began_s = time.monotonic()
    agent.send_signal(number)
    gone, _ = psutil.wait_procs([agent], timeout=90.0)
    took_s = time.monotonic() - began_s
    assert gone == [agent]
    assert took_s < 50.0
    wait_until("it resumes", lambda: len(formed_messages(client)) == 2)
    assert "resumes from its checkpoint at step 20" in formed_messages(client)[-1]


def test_all_nodes_leaving_at_once_in_a_long_step_lose_nothing(service: RunningService, tmp_path: Path) -> None:
    """The one that saves what they have does not wait for the step, the other for no longer than it may."""
    service.configure(OAKUM_LEAVE_DEADLINE_S="10")
    client = service.start()
    arguments = {"folder": str(tmp_path), "after": 40, "stall_s": 600.0}
    client.submit(endless(entrypoint="small_task:stalling_task", arguments=arguments, max_nodes=2, min_nodes=2))
    wait_until("a long step has begun", lambda: len(list(tmp_path.glob("stalls-*"))) == 2)
    agents = list(service.agents().values())
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(agents, timeout=90.0)
    assert alive == []
    wait_until("it resumes", lambda: len(formed_messages(client)) == 2)
    assert "resumes from its checkpoint at step 40" in formed_messages(client)[-1]
