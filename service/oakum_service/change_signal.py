"""A signal that wakes everyone who waits for a change: long polls, event streams, the loops of the controller."""

from __future__ import annotations

import asyncio
import threading


class ChangeSignal:
    """A counter of changes: any thread can count one, and coroutines can wait for the next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._closed = False

    @property
    def version(self) -> int:
        """Number of changes so far. Read it before reading the state whose change you wait for."""
        return self._version

    @property
    def closed(self) -> bool:
        """Whether the service is stopping, so that nobody should wait any more."""
        return self._closed

    def notify(self) -> None:
        """Count one change and wake everyone who waits."""
        with self._lock:
            self._version += 1
            waiters, self._waiters = self._waiters, set()
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Wake everyone for the last time: later waits return at once."""
        self._closed = True
        self.notify()

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Return when `version` is above `seen`, when the signal is closed, or after `timeout_s` seconds."""
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        with self._lock:
            if self._version > seen or self._closed:
                return
            self._waiters.add(entry)
        try:
            await asyncio.wait_for(event.wait(), timeout_s)
        except TimeoutError:
            return
        finally:
            with self._lock:
                self._waiters.discard(entry)
