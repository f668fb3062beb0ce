"""A rank that hangs in a thread holds up neither the end of its test nor that of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rank_threads
from turns import Turns
from waiting import DEADLINE_S

_HANGS = """
import signal, threading
from rank_threads import RankThreads

over = threading.Event()

def stop(*of_signal):
    if not over.is_set():
        over.set()
        raise TimeoutError

def as_rank(rank):
    while rank == 1 and not over.wait(0.02):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    threading.Event().wait()

signal.signal(signal.SIGUSR1, stop)
try:
    RankThreads(as_rank, range(2)).results()
except TimeoutError:
    print("went on")
"""


def test_threads_that_hang_are_left_when_the_time_is_over_and_when_the_process_ends() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _HANGS],
        env=os.environ | {"PYTHONPATH": str(Path(rank_threads.__file__).parent)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert (ended.returncode, ended.stdout) == (0, "went on\n"), ended.stderr


@pytest.fixture
def time_is_over() -> Iterator[Callable[[], None]]:
    """Raises `TimeoutError` in the main thread, whatever that waits for."""
    has_raised = threading.Event()

    def stop(*_of_signal: object) -> None:
        if not has_raised.is_set():
            has_raised.set()
            raise TimeoutError

    def raise_there() -> None:
        # One that comes when the thread is just about to wait is not seen before the wait is over.
        while not has_raised.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    yield raise_there
    signal.signal(signal.SIGUSR1, before)


def test_ranks_that_wait_for_one_that_hangs_do_not_go_on_after_their_test(
    time_is_over: Callable[[], None],
) -> None:
    others, hangs, went_on = set(threading.enumerate()), threading.Event(), threading.Event()

    def as_rank(rank: int) -> None:
        if rank == 0:
            time_is_over()
            hangs.wait(DEADLINE_S)
        else:
            went_on.set()

    with pytest.raises(TimeoutError):
        Turns(2).run(as_rank)
    ranks = set(threading.enumerate()) - others
    hangs.set()
    for thread in ranks:
        thread.join(DEADLINE_S)
    assert not went_on.is_set()
