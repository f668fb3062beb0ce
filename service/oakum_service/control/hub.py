"""Wakes whoever waits for a change: long polls, event streams, the control loop."""

from __future__ import annotations

import asyncio
import threading


class Hub:
    """A counter of changes that coroutines wait on and any thread may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._closed = False

    @property
    def version(self) -> int:
        """Rises with every change. Read it before the state it announces."""
        return self._version

    @property
    def closed(self) -> bool:
        """Whether the service is stopping: nobody should wait any more."""
        return self._closed

    def notify(self) -> None:
        """Something has changed."""
        with self._lock:
            self._version += 1
            waiters, self._waiters = self._waiters, set()
        for loop, event in waiters:
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """Wake everyone for the last time."""
        self._closed = True
        self.notify()

    async def wait(self, seen: int, timeout_s: float) -> None:
        """Return when the version is above `seen`, the hub closes, or time is up."""
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
