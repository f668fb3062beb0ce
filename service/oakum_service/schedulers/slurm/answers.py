"""Whether Slurm answers: since when a question has been without an answer, and what was tried."""

from __future__ import annotations

import math

from oakum_service.documents.silence import Silence

ASK_EVERY_S = 10.0
"""Longest time without a question, so that a slurmctld that dies is noticed however rarely its state is read."""
_PATIENCE_S = 15.0


class Answers:
    """Remembers the first question to Slurm that has had no answer.

    Slurm is silent when a question has failed, or has been waited for for 15 s, or for twice as long as the last
    reading took. Only a whole reading ends a silence: a slurmctld whose threads are stuck still answers a ping.
    Pure: the caller passes monotonic times.
    """

    def __init__(self) -> None:
        self._first_s: float | None = None
        """When the first question without an answer was asked; None if all have been answered."""
        self._newest_s: float | None = None
        self._asked = ""
        self._failure = ""
        self._patience_s = _PATIENCE_S

    def ask(self, what: str, now_s: float) -> None:
        """Note that a question, such as the name of a command, is asked now."""
        self._first_s = now_s if self._first_s is None else self._first_s
        self._newest_s, self._asked = now_s, what

    def read(self, now_s: float) -> None:
        """Note that the question asked last, a reading of the whole state, has been answered."""
        if self._newest_s is not None:
            self._patience_s = max(_PATIENCE_S, 2 * (now_s - self._newest_s))
        self._first_s, self._failure = None, ""

    def heard(self, now_s: float) -> None:
        """Note that the question asked last has been answered, or refused, and was not the whole state."""
        if not self._failure and self._first_s is not None and now_s - self._first_s <= self._patience_s:
            self._first_s = None

    def fail(self, why: str) -> None:
        """Note that the question asked last has had no answer, and why."""
        self._failure = why

    def due_in_s(self, now_s: float) -> float:
        """Seconds until a question is due; infinite before the first one."""
        return math.inf if self._newest_s is None else max(0.0, self._newest_s + ASK_EVERY_S - now_s)

    def silence(self, now_s: float, now: float) -> Silence | None:
        """The silence that lasts, if there is one. `now`: the same moment in Unix seconds."""
        if self._first_s is None:
            return None
        waited_s = now_s - self._first_s
        if not self._failure and waited_s <= self._patience_s:
            return None
        tried = self._failure or f"{self._asked} has had no answer for {waited_s:.0f} s"
        return Silence(now - waited_s, tried)
