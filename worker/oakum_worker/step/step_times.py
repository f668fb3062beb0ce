"""How a rank's steps divide their time among reading samples, waiting for other ranks, and computing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple

from oakum_worker.protocol import Pace

_WINDOW_S = 10.0
"""Shortest window in seconds. A pace covers the time since the last window began; a new window begins once a pace
has covered this many seconds and at least one finished step."""


class StepUse(Enum):
    """What a rank spends a moment of a step on."""

    READING = auto()
    WAITING = auto()
    COMPUTING = auto()


class _Spent(NamedTuple):
    """Seconds spent up to a moment. Replaced as a whole, so that another thread reads times of one moment."""

    at_s: float
    use: StepUse | None = None
    """What the rank does from `at_s` on; None between steps."""
    reading_s: float = 0.0
    waiting_s: float = 0.0
    computing_s: float = 0.0
    steps: int = 0

    def until(self, now_s: float, use: StepUse | None) -> _Spent:
        """These times with the seconds since `at_s` added, and `use` from `now_s` on."""
        at_s, before, reading_s, waiting_s, computing_s, steps = self
        if before is StepUse.READING:
            reading_s += now_s - at_s
        elif before is StepUse.WAITING:
            waiting_s += now_s - at_s
        elif before is StepUse.COMPUTING:
            computing_s += now_s - at_s
        return _Spent(now_s, use, reading_s, waiting_s, computing_s, steps)


class StepTimes:
    """Adds up a rank's seconds by use. Another thread may call `pace` at any moment, also within a step."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives seconds."""
        self._clock = clock
        self._spent = self._window = _Spent(clock())
        self.tells_waiting = True
        """Whether `waiting` covers all waiting for other ranks. If not, waiting counts as computing, and paces
        report None."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context of one step; the step counts as finished unless the body raises."""
        self._turn_to(StepUse.COMPUTING)
        try:
            yield
        finally:
            self._turn_to(None)
        self._spent = self._spent._replace(steps=self._spent.steps + 1)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context in which samples are read and collated; its time counts as reading if it lies within a step."""
        before = self._spent.use
        self._turn_to(StepUse.READING if before is not None else None)
        try:
            yield
        finally:
            self._turn_to(before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context in which this rank only waits for others; its time counts as waiting if `tells_waiting`."""
        before = self._spent.use
        self._turn_to(StepUse.WAITING if self.tells_waiting else before)
        try:
            yield
        finally:
            self._turn_to(before)

    def begin_window(self) -> None:
        """Have `pace` cover only the time from now on: the pace changes with the number of nodes."""
        self._window = self._spent.until(self._clock(), self._spent.use)

    def pace(self) -> Pace | None:
        """The steps and seconds of the present window, the running step included; None if it has no time in
        steps."""
        now, begin = self._spent.until(self._clock(), None), self._window
        seconds = (
            now.reading_s + now.waiting_s + now.computing_s
            - begin.reading_s - begin.waiting_s - begin.computing_s
        )  # fmt: skip
        if seconds <= 0:
            return None
        pace = Pace(
            steps=now.steps - begin.steps,
            seconds=seconds,
            reading_s=now.reading_s - begin.reading_s,
            waiting_s=now.waiting_s - begin.waiting_s if self.tells_waiting else None,
        )
        if pace.steps and seconds >= _WINDOW_S:
            self._window = now
        return pace

    def _turn_to(self, use: StepUse | None) -> None:
        self._spent = self._spent.until(self._clock(), use)
