"""What time it is, for all that the service decides by the time or writes down with it.

One place tells it, so that a whole service can be taken through hours in a time of its own (`bench/live.py`). How
long the machine itself takes, such as a database that does not answer, is measured where it is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """Tells the time."""

    def now(self) -> float:
        """Unix seconds."""

    def steady_s(self) -> float:
        """Seconds since any one moment; they never go back."""


class _MachineClock:
    def now(self) -> float:
        return time.time()

    def steady_s(self) -> float:
        return time.monotonic()


_clock: Clock = _MachineClock()


def now() -> float:
    """The time in Unix seconds."""
    return _clock.now()


def steady_s() -> float:
    """Seconds since any one moment, which never go back: for the time between two moments of one process."""
    return _clock.steady_s()


@contextmanager
def told_by(clock: Clock) -> Iterator[None]:
    """Context in which `clock` tells the time to this whole process, all its threads included."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before
