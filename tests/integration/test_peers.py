"""Processes of the service that share a PostgreSQL database tell each other what has changed."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
from sqlalchemy import Engine, text

from api_under_test import FakeScheduler
from oakum_service.db.engine import open_engine, open_readers, open_sessions, upgrade
from oakum_service.db.lease import LeaseHolder
from oakum_service.peers.line import LONGEST, PostgresLine
from oakum_service.peers.peers import DatabasePeers
from oakum_service.peers.shared_signal import SharedSignal
from oakum_service.schedulers.port import HookEvent, HookKind, RequestTime
from oakum_service.schedulers.slurm.reading.pushed_source import decode_state, encode_state
from oakum_service.schedulers.slurm.reading.state import SlurmNode, SlurmState
from waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.needs("postgres")

EVENT = HookEvent(HookKind.ALLOCATED, "7", "n[1-3]", "main", 1000, 12.0, 13.0)
STATE = SlurmState(0.0, "22.05.8", tuple(SlurmNode(f"n{n}", "", ("IDLE",), ("main",)) for n in range(3)), ())


@dataclass
class ToldScheduler(FakeScheduler):
    """A scheduler that records what it is told."""

    hooks: list[HookEvent] = field(default_factory=list)
    states: list[SlurmState] = field(default_factory=list)

    def on_hook(self, event: HookEvent) -> None:
        self.hooks.append(event)

    def on_state(self, body: bytes, arrival: RequestTime) -> float:
        self.states.append(decode_state(body, arrival))
        return self.states[-1].taken_at


class Process:
    """What one process of the service has for its peers."""

    def __init__(self, url: str) -> None:
        self.engine = open_engine(url)
        self.line = PostgresLine(self.engine)
        self.heard: queue.Queue[str] = queue.Queue()
        self.line.hear("words", self.heard.put)
        self.signal = SharedSignal(self.line, "news")
        sessions = open_sessions(self.engine)
        self.lease = LeaseHolder(sessions, alone=False)
        self.scheduler = ToldScheduler()
        self.peers = DatabasePeers(sessions, open_readers(self.engine), self.line, self.lease, self.scheduler)

    def open(self) -> None:
        """Open the line; returns once it listens."""
        self.line.open()
        assert self.heard.get(timeout=DEADLINE_S) == ""

    def close(self) -> None:
        self.line.close()
        self.engine.dispose()


@pytest.fixture
def pair(empty_url: str) -> Iterator[tuple[Process, Process]]:
    """Two processes; the first is the controller."""
    one, other = Process(empty_url), Process(empty_url)
    upgrade(one.engine)
    one.open()
    other.open()
    assert one.lease.acquire()
    assert not other.lease.acquire()
    yield one, other
    one.close()
    other.close()


def broken(engine: Engine) -> None:
    """End every connection of the line, as a restart of the database does."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND (query LIKE 'LISTEN%' OR query LIKE 'SELECT pg_notify%')"
            )
        )


def test_a_message_reaches_the_others_and_not_its_sender(pair: tuple[Process, Process]) -> None:
    one, other = pair
    one.line.tell("words", "hello there: 1 ä")
    other.line.tell("words", "back")
    assert other.heard.get(timeout=DEADLINE_S) == "hello there: 1 ä"
    assert one.heard.get(timeout=DEADLINE_S) == "back"
    assert other.heard.empty()
    with pytest.raises(ValueError, match="7001 bytes: expected 7000"):
        one.line.tell("words", "x" * (LONGEST + 1))


def test_after_a_broken_connection_it_is_heard_that_messages_may_be_lost(pair: tuple[Process, Process]) -> None:
    one, other = pair
    broken(one.engine)
    assert other.heard.get(timeout=DEADLINE_S) == ""
    one.line.tell("words", "again")
    found = ""
    while found != "again":
        found = other.heard.get(timeout=DEADLINE_S)


def test_whoever_waits_in_one_process_is_woken_by_another(pair: tuple[Process, Process]) -> None:
    one, other = pair

    async def wait_for_the_other() -> int:
        seen = one.signal.version
        waiting = asyncio.create_task(one.signal.wait(seen, DEADLINE_S))
        await asyncio.to_thread(other.signal.notify)
        await waiting
        return one.signal.version - seen

    assert asyncio.run(wait_for_the_other()) == 1


def test_many_changes_become_few_messages(pair: tuple[Process, Process]) -> None:
    one, other = pair
    before = other.signal.version
    for _ in range(2000):
        one.signal.notify()
    one.line.tell("words", "last")
    assert other.heard.get(timeout=DEADLINE_S) == "last"
    assert 1 <= other.signal.version - before <= 1000


def test_hooks_that_another_process_hears_of_reach_the_controller(pair: tuple[Process, Process]) -> None:
    one, other = pair
    other.peers.pass_on_hook(EVENT)
    wait_until("the controller knows", lambda: one.scheduler.hooks)
    assert one.scheduler.hooks == [EVENT]
    one.peers.pass_on_hook(EVENT)  # its own adapter was told already
    one.line.tell("words", "after it")
    assert other.heard.get(timeout=DEADLINE_S) == "after it"
    assert other.scheduler.hooks == []


def test_a_hook_with_too_many_nodes_for_a_message_reaches_the_controller_without(
    pair: tuple[Process, Process],
) -> None:
    one, other = pair
    scattered = HookEvent(HookKind.ALLOCATED, "8", ",".join(f"n{2 * n}" for n in range(5000)), "main", 1, 2.0, 3.0)
    other.peers.pass_on_hook(scattered)
    wait_until("the controller knows", lambda: one.scheduler.hooks)
    assert [(event.job, event.nodes) for event in one.scheduler.hooks] == [("8", "")]


def test_a_state_that_another_process_is_given_reaches_the_controller(pair: tuple[Process, Process]) -> None:
    one, other = pair
    for taken_at in (time.time() - 2.0, time.time() - 1.0):
        other.peers.pass_on_state(encode_state(STATE), taken_at)
        known = partial(lambda at: one.scheduler.states and one.scheduler.states[-1].taken_at == at, taken_at)
        wait_until("the controller has it", known)
    assert one.scheduler.states[-1].nodes == STATE.nodes


def test_each_process_sees_who_the_controller_is(pair: tuple[Process, Process]) -> None:
    one, other = pair
    with one.lease.writing() as session:
        one.lease.note_snapshot(session, 99.5)
    seen = other.peers.controller()
    assert seen is not None
    assert (seen.name, seen.is_current, seen.snapshot_at) == (one.lease.name, True, 99.5)
    assert (one.peers.is_controller, other.peers.is_controller) == (True, False)
    one.lease.give_up()
    assert (seen := other.peers.controller()) is not None
    assert not seen.is_current
    assert other.lease.acquire()
    assert (one.peers.is_controller, other.peers.is_controller) == (False, True)
