"""Finds which of several ways to do something is fastest, on a machine that other work shares.

Other work slows down whatever runs at the time, for milliseconds or for minutes. Therefore every round times
each way once, and a time is compared only with the times of its own round:

log t(way, round) = log disturbance(round) + log cost(way) + noise

The disturbances and costs are medians, which single slow times do not change. Rounds go on until no other way
can be noticeably faster than the fastest one; ways that are surely slower are left out of later rounds.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Way = TypeVar("Way", bound=Hashable)

_FEWEST_ROUNDS, _MOST_ROUNDS = 4, 60
_MAD_TO_SIGMA, _MEDIAN_TO_MEAN = 1.4826, 1.2533
"""Of a normal distribution: deviation by median absolute deviation; standard error of a median by a mean's."""


@dataclass(frozen=True, slots=True)
class Compared(Generic[Way]):
    """What the rounds have shown."""

    seconds: dict[Way, float]
    """Of each way, as in the round in which the machine was least disturbed."""
    fastest: Way
    uncertainty: float
    """The share by which another way may be faster than `fastest`, with about 95 % confidence; 0 if none is."""
    rounds: int


def compare(
    ways: Sequence[Way],
    time_once: Callable[[Way], float],
    *,
    close: float = 0.02,
    enough_s: float = 20.0,
    clock: Callable[[], float] = time.monotonic,
) -> Compared[Way]:
    """Time the ways round after round, until none can be faster than the fastest one by more than the share
    `close`; returns each way's seconds, the fastest way, and the share by which another one may be faster.

    `time_once` runs a way once and returns its seconds, above 0. There are at most 60 rounds, and none begins
    after `enough_s` seconds by `clock`; but at least 4 rounds are made, or 2 if these took that long. Raises
    `ValueError` without ways.
    """
    if not ways:
        raise ValueError("no ways to compare: give at least one")
    times = _Times(list(ways))
    ends_at = clock() + enough_s
    while True:
        times.add_round(time_once)
        late = clock() >= ends_at
        if times.rounds < _FEWEST_ROUNDS and not (late and times.rounds >= 2):
            continue
        times.drop_slower()
        if times.uncertainty() <= close or late or times.rounds >= _MOST_ROUNDS:
            return Compared(times.seconds(), times.fastest, times.uncertainty(), times.rounds)


class _Times(Generic[Way]):
    """Logarithms of times, by way and round; a way that has dropped out has no more rounds."""

    def __init__(self, ways: list[Way]) -> None:
        self._logs: dict[Way, list[float]] = {way: [] for way in ways}
        self._open = ways

    @property
    def rounds(self) -> int:
        return len(self._logs[self._open[0]])

    @property
    def fastest(self) -> Way:
        costs = self._costs()
        return min(self._open, key=lambda way: costs[way])

    def add_round(self, time_once: Callable[[Way], float]) -> None:
        """Time each way once, in the opposite order every other round."""
        backwards = self.rounds % 2 == 1
        for way in reversed(self._open) if backwards else list(self._open):
            self._logs[way].append(math.log(max(time_once(way), 1e-9)))

    def drop_slower(self) -> None:
        """Leave ways that are surely slower than the fastest one out of later rounds."""
        fastest, costs = self.fastest, self._costs()
        self._open = [way for way in self._open if costs[way] - costs[fastest] <= self._margin(way, fastest)]

    def uncertainty(self) -> float:
        """The largest share by which another way, of those still timed, may be faster than the one that seems
        fastest."""
        fastest, costs = self.fastest, self._costs()
        leads = (costs[way] - costs[fastest] - self._margin(way, fastest) for way in self._open)
        return max(0.0, *(1 - math.exp(lead) for lead in leads))

    def seconds(self) -> dict[Way, float]:
        """Each way's time as in the least disturbed round."""
        quiet = min(self._disturbances())
        return {way: math.exp(cost + quiet) for way, cost in self._costs().items()}

    def _disturbances(self) -> list[float]:
        """For each round the median of the logarithms of its times, over the ways that have been timed in all
        rounds."""
        return [statistics.median(column) for column in zip(*(self._logs[way] for way in self._open), strict=True)]

    def _costs(self) -> dict[Way, float]:
        rounds = self._disturbances()
        return {
            way: statistics.median(log - disturbance for log, disturbance in zip(logs, rounds, strict=False))
            for way, logs in self._logs.items()
        }

    def _margin(self, way: Way, other: Way) -> float:
        """How far the difference of two ways' costs may be off, with about 95 % confidence."""
        if way == other:
            return 0.0
        differences = [one - two for one, two in zip(self._logs[way], self._logs[other], strict=False)]
        middle = statistics.median(differences)
        deviation = _MAD_TO_SIGMA * statistics.median(abs(one - middle) for one in differences)
        correction = 1 + 2 / len(differences)  # a deviation of few values is itself uncertain
        return 2 * correction * _MEDIAN_TO_MEAN * deviation / math.sqrt(len(differences))
