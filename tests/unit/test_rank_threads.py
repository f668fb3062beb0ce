"""A rank that hangs in a thread holds up neither the end of its test nor that of the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_threads
from turns import Turns
from waiting import DEADLINE_S

_HANGS = """
import signal, threading
from rank_threads import RankThreads

def stop(*of_signal):
    raise TimeoutError

def as_rank(rank):
    if rank == 1:
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
def raising_signal() -> Iterator[signal.Signals]:
    """A signal that raises `TimeoutError` in the main thread."""

    def stop(*_of_signal: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, stop)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_ranks_that_wait_for_one_that_hangs_do_not_go_on_after_their_test(raising_signal: signal.Signals) -> None:
    others, hangs, went_on = set(threading.enumerate()), threading.Event(), threading.Event()

    def as_rank(rank: int) -> None:
        if rank == 0:
            signal.pthread_kill(threading.main_thread().ident, raising_signal)
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
