"""Tells a rank that hangs in its step from ranks that only wait for the hung rank.

Where parameters are sharded, every forward and backward pass is a collective, and in a pipeline every stage waits
for its neighbours. When one rank never ends its step, all other ranks wait within their steps, in torch's code for
collectives or where messages are received. They must not count as hung, because training goes on from their copies
of the state. Therefore time that the training thread spends in such code does not count towards the limit.

On GPUs a thread waits for a collective only where it reads a result off the device; this cannot be told from
computing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

_PARALLEL = Path(__file__).parents[1] / "parallel"
_WAITING = (
    str(Path(dist.__file__).parent),
    str(_PARALLEL / "waiting.py"),
    str(_PARALLEL / "subgroups.py"),
    str(_PARALLEL / "pipeline" / "links.py"),
    str(_PARALLEL / "pipeline" / "message_driven.py"),
    str(_PARALLEL.parent / "rendezvous"),
)
"""Folders and modules whose code mostly waits for other ranks."""
_WRITING = str(Path(dist.__file__).parent / "checkpoint")
"""Part of the folder whose code writes files."""
PATIENCE = 10
"""Multiple of the limit that a step may take with its waits: ranks in different collectives would wait forever."""


class StepClock:
    """Measures the time of the running step by samples that another thread takes, so that steps lose no time.

    An interval between two samples counts as waiting if the thread waits at the interval's end.
    """

    def __init__(self, began_s: Callable[[], float | None], waits: Callable[[], bool]) -> None:
        """`began_s` returns the beginning of the present step, or None between steps, in seconds on the monotonic
        clock; `waits` returns whether the step waits for other ranks."""
        self._began_s = began_s
        self._waits = waits
        self._step: float | None = None
        self._waited_s = 0.0
        self._looked_s = time.monotonic()

    def exceeds(self, limit_s: float) -> bool:
        """Take a sample of the running step. Returns whether the step has taken more than `limit_s` without its
        waits, or `PATIENCE` times that with them; False between steps."""
        step, now_s = self._began_s(), time.monotonic()
        if step is None:
            return False
        if step != self._step:
            self._step, self._waited_s, self._looked_s = step, 0.0, step
        if self._waits():
            self._waited_s += now_s - self._looked_s
        self._looked_s = now_s
        taken_s = now_s - step
        return taken_s - self._waited_s > limit_s or taken_s > PATIENCE * limit_s


class Vigil:
    """Measures for how long a condition has held, by looks at it from time to time."""

    def __init__(self, is_so: Callable[[], bool]) -> None:
        self._is_so = is_so
        self._since_s: float | None = None

    def lasts(self, limit_s: float) -> bool:
        """Look at the condition now. Returns whether it has held at every look for at least `limit_s` seconds."""
        if not self._is_so():
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = time.monotonic()
        return time.monotonic() - self._since_s >= limit_s


def waits_for_others() -> bool:
    """Whether the main thread waits for another rank at this moment. To be called from another thread."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    # Only the innermost frame tells: torch's sharding also has frames around the task's own code.
    if frame is None:
        return False
    file = frame.f_code.co_filename
    return file.startswith(_WAITING) and not file.startswith(_WRITING)
