"""What a process does first that was forked from one with threads and connections."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal

_PR_SET_PDEATHSIG = 1


def begin_forked(parent: int) -> None:
    """End with the process `parent`, from which this one was forked, and leave its garbage alone. Ends this
    process at once where the parent has ended already."""
    # What is garbage here is the parent's: process groups, for one, whose destructors wait for threads that only
    # the parent has.
    gc.freeze()
    with contextlib.suppress(OSError, AttributeError):  # another system
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
