"""Remembers when the controller last finished a turn, for whoever is asked whether the service is ready."""

from __future__ import annotations

from collections.abc import Callable

from oakum_service import clock


class TurnClock:
    """Knows how long ago the controller's newest turn ended without an error. Any thread may use it."""

    def __init__(self, clock_s: Callable[[], float] = clock.steady_s) -> None:
        """`clock_s` returns seconds and never goes back."""
        self._clock_s = clock_s
        self._ended_at_s: float | None = None

    def note_turn(self) -> None:
        """Note that a turn has just ended without an error."""
        self._ended_at_s = self._clock_s()

    def forget(self) -> None:
        """Note that this process is not, or no longer, the controller."""
        self._ended_at_s = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the newest turn ended; None if this process has finished none since it became the
        controller."""
        ended_at_s = self._ended_at_s
        return None if ended_at_s is None else self._clock_s() - ended_at_s
