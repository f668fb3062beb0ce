"""Limits how many requests a token may send: a few at once, then so many per second."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from oakum_service.errors import TooManyRequests

_BURST_S = 4.0
"""Seconds' worth of requests that may come at once after a pause."""
_MOST_KNOWN = 10_000


class RateLimit:
    """A token bucket for each API token; to be called by any thread."""

    def __init__(self, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`per_s`: requests that each token may send per second; infinity for no limit. `clock` gives seconds."""
        self._per_s = per_s
        self._clock = clock
        self._full = max(1.0, per_s * _BURST_S)
        self._buckets: dict[str, tuple[float, float]] = {}
        """Token -> requests left, and when that was counted. A token that is missing has a full bucket."""
        self._lock = threading.Lock()

    def count(self, token: str) -> None:
        """Count one request of the token. Raises `TooManyRequests` if it has sent too many."""
        if math.isinf(self._per_s):
            return
        with self._lock:
            now = self._clock()
            left, counted_at = self._buckets.get(token, (self._full, now))
            left = min(self._full, left + (now - counted_at) * self._per_s)
            if left >= 1.0:
                self._buckets[token] = (left - 1.0, now)
                self._forget_full(now)
                return
        wait_s = math.ceil((1.0 - left) / self._per_s)
        raise TooManyRequests(
            f"this token sends more than {self._per_s:g} requests per second: wait {wait_s} s", wait_s
        )

    def _forget_full(self, now: float) -> None:
        if len(self._buckets) > _MOST_KNOWN:
            self._buckets = {
                token: (left, at)
                for token, (left, at) in self._buckets.items()
                if left + (now - at) * self._per_s < self._full
            }
