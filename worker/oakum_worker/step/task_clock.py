"""When the task's code began to run, for the watch over steps that hang."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class TaskClock:
    """Tells another thread since when the task's code runs."""

    def __init__(self) -> None:
        self.computing_since_s: float | None = None
        """When the task's code began to run in the present step or evaluation, in monotonic seconds; else None."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Context in which the task's code runs, as the watch for hung steps understands it."""
        self.computing_since_s = time.monotonic()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """From here on this rank may be waiting for others."""
        self.computing_since_s = None
