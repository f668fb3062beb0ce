"""Time that passes only when nothing is left to do at present, for an event loop and for the service's clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

BEGINS_AT = 1_800_000_000.0
"""Unix seconds at which virtual time begins."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop that skips to the next moment at which something is due instead of waiting for it.

    Work that is handed to threads is done at once, in the loop's own thread, and takes no virtual time: so a run
    with the same seed is the same run. It is the service's clock as well (`oakum_service.clock.Clock`).
    """

    def __init__(self) -> None:
        self._at_s = 0.0
        super().__init__(_Skipping(self))
        self._clock_resolution = 1e-6

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._at_s

    steady_s = time

    def now(self) -> float:
        """Virtual Unix seconds."""
        return BEGINS_AT + self._at_s

    def skip(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._at_s += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call the function now, in this thread."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class _Skipping(selectors.DefaultSelector):
    """Lets the loop's time pass in place of waiting."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found and timeout is None:
            raise RuntimeError("nothing is due any more in virtual time, and the run has not ended")
        if not found and timeout:
            self._loop.skip(timeout)
        return found
