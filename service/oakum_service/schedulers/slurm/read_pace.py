"""When Slurm's state may be read again: one reading at a time, with a shortest gap that grows while Slurm is
slow or failing."""

from __future__ import annotations

from oakum_service.config import SlurmSettings

MOST_STRETCH = 8
"""Largest factor on the shortest gap."""


class ReadPace:
    """Decides when to read next. Pure: the caller passes the time, by any one clock."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._poll_floor_s = settings.poll_floor_s
        self._hook_floor_s = min(settings.hook_floor_s, settings.poll_floor_s)
        self._slow_cycle_s = settings.slow_cycle_s
        self._stretch = 1
        self._ended_at: float | None = None
        self._took_s = 0.0

    def next_at(self, now: float, hinted: bool) -> float:
        """When the next reading may begin, `now` at the earliest.

        `hinted`: a hook has reported a change since the last reading began.
        """
        if self._ended_at is None or now < self._ended_at:  # never read, or the clock was set back
            return now
        floor_s = self._hook_floor_s if hinted else self._poll_floor_s
        return max(now, self._ended_at + max(floor_s * self._stretch, self._took_s))

    def took(self, began_s: float, ended_s: float, cycle_s: float | None) -> None:
        """Note a successful reading. The next gap is at least as long as the reading, so reading takes at most
        half of the time.

        `cycle_s`: duration of Slurm's last scheduling cycle, None if unknown.
        """
        slow = cycle_s is not None and cycle_s > self._slow_cycle_s
        self._end(ended_s, max(0.0, ended_s - began_s), slow)

    def failed(self, now: float) -> None:
        """Note a failed reading."""
        self._end(now, 0.0, True)

    def _end(self, at: float, took_s: float, stretches: bool) -> None:
        self._ended_at = at
        self._took_s = took_s
        self._stretch = min(MOST_STRETCH, 2 * self._stretch) if stretches else 1
