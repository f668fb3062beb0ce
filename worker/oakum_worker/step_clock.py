"""Who hangs, and who only waits for the one that hangs.

Where parameters are sharded every forward and backward pass is a collective, and in a pipeline every stage waits
for its neighbours. When one rank never ends its step, all others stand in the middle of theirs, in torch's code
for collectives or where messages are received; they must not be taken for hung, since they have the copies to go
on from. So time that the training thread spends there is not counted as its own.

Collectives on GPUs hold up nobody but who reads a result off the device; that is not told from computing.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

_PARALLEL = Path(__file__).parent / "parallel"
_WAITING = (
    str(Path(dist.__file__).parent),
    str(_PARALLEL / "waiting.py"),
    str(_PARALLEL / "subgroups.py"),
    str(_PARALLEL / "pipeline" / "links.py"),
    str(_PARALLEL / "pipeline" / "message_driven.py"),
)
"""Folder and modules whose code does nothing but wait for other ranks, at least not for long."""
PATIENCE = 10
"""Times the limit that a step may take waits included: collectives that never meet free nobody by themselves."""


class StepClock:
    """Counts the time of the step that runs, by looking now and then: a step pays nothing for it.

    An interval between two looks belongs to what the thread is seen to do at its end.
    """

    def __init__(self, began_s: Callable[[], float | None], waits: Callable[[], bool]) -> None:
        """`began_s` tells when the present step began, None between steps; `waits` whether others hold it up."""
        self._began_s = began_s
        self._waits = waits
        self._step: float | None = None
        self._waited_s = 0.0
        self._looked_s = time.monotonic()

    def exceeds(self, limit_s: float) -> bool:
        """Whether the step has taken longer than the limit, without waits; or far longer, with them."""
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


def waits_for_others() -> bool:
    """Whether the main thread waits for another rank at this moment. For another thread to ask."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    # Only the innermost frame tells: torch's sharding also has frames around the task's own code.
    return frame is not None and frame.f_code.co_filename.startswith(_WAITING)
