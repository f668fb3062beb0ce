"""Reads the database once after each change, for all who wait for it together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from oakum_service.change_signal import ChangeSignal

_FRESH_S = 0.5
"""Age from which is read anew without a change here: another process may have made one."""


class SharedReading:
    """One reading at a time, in a thread, for all who ask meanwhile."""

    def __init__(self, changes: ChangeSignal, read: Callable[[], None]) -> None:
        """`read` reads the database and keeps what was read."""
        self._changes = changes
        self._read = read
        self._version, self._read_s = -1, 0.0
        self._reading: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """Number of changes before the newest reading began; -1 before the first reading."""
        return self._version

    async def refresh(self) -> None:
        """Return once what was read is not older than the last change and 0.5 s. Raises what reading raises."""
        needed = self._changes.version
        while self._version < needed or time.monotonic() - self._read_s > _FRESH_S:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_once())
            # Shielded: others wait for the reading, too, when one caller is cancelled.
            await asyncio.shield(self._reading)

    async def _read_once(self) -> None:
        try:
            version, began_s = self._changes.version, time.monotonic()
            await asyncio.to_thread(self._read)
            self._version, self._read_s = version, began_s
        finally:
            self._reading = None
