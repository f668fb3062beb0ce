"""Plans that are made for whoever asks, and have no effect: previews and dry runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from oakum_service.errors import Busy

_PATIENCE_S = 5.0


class TrialPlans:
    """Lets one plan be made at a time, and after each leaves as much time to others as it took: with thousands of
    trainers a plan takes seconds, and the controller's turns wait for the same processor."""

    def __init__(
        self,
        patience_s: float = _PATIENCE_S,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._lock = threading.Lock()
        self._patience_s, self._clock_s, self._sleep = patience_s, clock_s, sleep
        self._free_s = 0.0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Context in which one plan is made. Raises `Busy` where that could not begin within five seconds."""
        asked_s = self._clock_s()
        if not self._lock.acquire(timeout=self._patience_s):
            raise self._busy()
        try:
            began_s = self._clock_s()
            if self._free_s - asked_s > self._patience_s:
                raise self._busy()
            if self._free_s > began_s:
                self._sleep(self._free_s - began_s)
                began_s = self._clock_s()
            try:
                yield
            finally:
                ended_s = self._clock_s()
                self._free_s = 2 * ended_s - began_s
        finally:
            self._lock.release()

    def _busy(self) -> Busy:
        return Busy("other previews and dry runs are being computed: ask again in a moment")
