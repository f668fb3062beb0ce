"""Ranks that hang, and leaving in the middle of a long step."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest

from oakum_service.client import OakumClient
from running_service import RunningService, small_spec, wait_for_size, wait_until

pytestmark = [pytest.mark.timeout(240), pytest.mark.xdist_group("hanging")]


def endless(**fields: object):  # type: ignore[no-untyped-def]
    """A trainer that outlasts any test; durable checkpoints come too rarely to help it."""
    return small_spec("elastic", epochs=100_000, checkpoint={"every_s": 3600.0}, **fields)


def formed_messages(client: OakumClient) -> list[str]:
    return [event.message for event in client.recent_events(500).events if event.kind == "generation.formed"]


def test_a_rank_that_hangs_is_found_and_started_anew_on_its_node(service: RunningService) -> None:
    """Stopped, it closes no connection and answers nobody: only its silence tells."""
    client = service.start()
    client.submit(endless(max_nodes=3))
    wait_for_size(client, "elastic", 3)
    fragment, rank = list(service.ranks().items())[-1]
    before = client.trainer("elastic").step
    rank.suspend()
    wait_until("the others train on", lambda: client.trainer("elastic").step > before + 50, timeout_s=30.0)
    wait_for_size(client, "elastic", 3)
    assert not rank.is_running()
    assert set(service.agents()) == set(service.ranks())
    assert fragment in service.ranks()
    assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]


def test_a_node_that_comes_back_after_it_was_given_up_is_sent_away(tmp_path: Path) -> None:
    """Its agent and its rank are stopped, as on a node that swaps; nobody else waits for it."""
    service = RunningService(
        tmp_path, PYTHONPATH=str(Path(__file__).parents[1] / "tasks"), OAKUM_HEARTBEAT_TIMEOUT_S="3"
    )
    try:
        client = service.start()
        client.submit(endless(max_nodes=2))
        wait_for_size(client, "elastic", 2)
        fragment, rank = next(iter(service.ranks().items()))
        agent = service.agents()[fragment]
        before = client.trainer("elastic").step
        agent.suspend()
        rank.suspend()
        wait_until("the other one trains on", lambda: client.trainer("elastic").step > before + 50, timeout_s=30.0)
        for process in (rank, agent):
            with contextlib.suppress(psutil.NoSuchProcess):  # ended already
                process.resume()
        _, alive = psutil.wait_procs([agent, rank], timeout=10.0)
        assert alive == []
        after = wait_for_size(client, "elastic", 2)
        assert after.step > before
        assert not [message for message in formed_messages(client)[1:] if "goes on" not in message]
    finally:
        service.end()


def test_a_step_that_never_ends_is_broken_off_and_repeated(service: RunningService, tmp_path: Path) -> None:
    client = service.start()
    arguments = {"folder": str(tmp_path)}
    client.submit(
        endless(entrypoint="small_task:once_hanging_task", arguments=arguments, max_nodes=2, step_timeout_s=2.0)
    )
    wait_until("a step hangs", (tmp_path / "hung").exists)
    wait_until("training goes on", lambda: client.trainer("elastic").step > 60, timeout_s=60.0)
    warnings = [e.message for e in client.recent_events(500).events if e.kind == "trainer.warning"]
    assert any("step_timeout_s" in warning for warning in warnings)


def test_a_killed_rank_on_a_single_node_goes_on_from_the_nodes_memory(service: RunningService) -> None:
    client = service.start()
    client.submit(
        small_spec("elastic", epochs=100_000, checkpoint={"every_s": 3600.0, "hot_every_steps": 1}, max_nodes=1)
    )
    wait_until("some steps are done", lambda: client.trainer("elastic").step > 200)
    before = client.trainer("elastic").step
    next(iter(service.ranks().values())).kill()
    wait_until("it goes on", lambda: len(formed_messages(client)) == 2, timeout_s=60.0)
    found = formed_messages(client)[-1]
    assert "memory" in found
    # How new the copy is follows from how long one takes: they may take a hundredth of the time.
    assert int(found.split("at step ")[1].split()[0]) > 0
    wait_until("it trains", lambda: client.trainer("elastic").step > before + 50)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_the_last_replica_leaves_within_a_long_step_and_loses_nothing(
    service: RunningService, tmp_path: Path, number: signal.Signals
) -> None:
    client = service.start()
    arguments = {"folder": str(tmp_path), "after": 20, "stall_s": 60.0}
    client.submit(endless(entrypoint="small_task:stalling_task", arguments=arguments, max_nodes=1))
    wait_until("a long step has begun", lambda: list(tmp_path.glob("stalls-*")))
    agent = next(iter(service.agents().values()))
    began_s = time.monotonic()
    agent.send_signal(number)
    gone, _ = psutil.wait_procs([agent], timeout=10.0)
    took_s = time.monotonic() - began_s
    assert gone == [agent]
    assert took_s < 8.0
    wait_until("it resumes", lambda: len(formed_messages(client)) == 2)
    assert "resumes from its checkpoint at step 20" in formed_messages(client)[-1]


def test_all_nodes_leaving_at_once_in_a_long_step_lose_nothing(service: RunningService, tmp_path: Path) -> None:
    client = service.start()
    arguments = {"folder": str(tmp_path), "after": 40, "stall_s": 60.0}
    client.submit(endless(entrypoint="small_task:stalling_task", arguments=arguments, max_nodes=2, min_nodes=2))
    wait_until("a long step has begun", lambda: len(list(tmp_path.glob("stalls-*"))) == 2)
    agents = list(service.agents().values())
    for agent in agents:
        agent.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(agents, timeout=10.0)
    assert alive == []
    wait_until("it resumes", lambda: len(formed_messages(client)) == 2)
    assert "resumes from its checkpoint at step 40" in formed_messages(client)[-1]
