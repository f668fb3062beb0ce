"""Waits for other ranks of which gloo loses the error: they end with the connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from oakum_worker.parallel import waiting
from oakum_worker.parallel.waiting import give_up_where, wait_for, wait_for_message, wait_for_messages

TENSOR = torch.zeros(1)


class Collective:
    """A collective whose wait times out in each of the first `turns` turns; then it has ended, with the error if
    there is one."""

    def __init__(self, turns: int, error: str = "", *, ends_late: bool = False) -> None:
        """One that `ends_late` has ended when it is asked for the last time, although its wait has timed out."""
        self.turns, self._error, self._ends_late = turns, error, ends_late

    def wait(self, timeout: timedelta | None = None) -> None:
        if self.turns:
            assert timeout is not None
            time.sleep(timeout.total_seconds())
            self.turns -= 1
            raise RuntimeError("timed out")
        if self._error:
            raise RuntimeError(self._error)

    def is_completed(self) -> bool:
        return self.turns == 0 and self._ends_late


class Message:
    """A message that is sent once it `may_end`."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.error: RuntimeError | None = None

    def wait(self, _timeout: timedelta) -> None:
        self.may_end.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The event that a test sets to say that all connections are closed. Waits look for it every 5 ms."""
    monkeypatch.setattr(waiting, "_TURN", timedelta(milliseconds=5))
    monkeypatch.setattr(waiting, "_WAITERS", waiting._Waiters())
    closed = threading.Event()
    give_up_where(closed.is_set)
    yield closed
    give_up_where(lambda: False)


def test_a_collective_is_waited_for_as_long_as_its_connections_are_open() -> None:
    work = Collective(turns=20)
    wait_for(work, TENSOR)
    assert work.turns == 0


def test_a_collective_that_fails_within_a_turn_raises_its_error() -> None:
    with pytest.raises(RuntimeError, match="its own"):
        wait_for(Collective(turns=0, error="its own"), TENSOR)


def test_a_collective_that_never_ends_is_given_up_with_its_connections(connections: threading.Event) -> None:
    connections.set()
    with pytest.raises(dist.DistNetworkError, match="closed"):
        wait_for(Collective(turns=1000), TENSOR)


def test_a_collective_that_ends_as_a_turn_does_tells_its_own_outcome(connections: threading.Event) -> None:
    connections.set()
    wait_for(Collective(turns=1, ends_late=True), TENSOR)
    with pytest.raises(RuntimeError, match="its own"):
        wait_for(Collective(turns=1, error="its own", ends_late=True), TENSOR)


def test_messages_are_waited_for_by_one_thread_as_long_as_their_connections_are_open() -> None:
    late, failing = Message(), Message()
    both: list[Any] = [(late, TENSOR), (failing, TENSOR)]
    threading.Timer(0.05, late.may_end.set).start()
    wait_for_message(late, TENSOR)
    assert late.may_end.is_set()
    failing.may_end.set()
    failing.error = RuntimeError("its own")
    with pytest.raises(RuntimeError, match="its own"):
        wait_for_messages(both)
    assert waiting._WAITERS._idle.qsize() == 1


def test_a_message_that_never_arrives_is_given_up_with_its_connections(connections: threading.Event) -> None:
    lost, following = Message(), Message()
    connections.set()
    with pytest.raises(dist.DistNetworkError, match="closed"):
        wait_for_message(lost, TENSOR)
    following.may_end.set()
    wait_for_message(following, TENSOR)  # by another thread, as the first one still waits
    lost.may_end.set()
