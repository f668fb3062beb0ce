"""Lets go of process groups that have broken, in a thread of its own.

gloo may lose the error of a broken connection (see `oakum_worker.parallel.waiting`). A collective that it carries
out then never ends, and the destructor of the group, which waits for it, does not either. So the last reference to
such a group must not be dropped by the thread that trains.
"""

from __future__ import annotations

import sys
import threading
import time

import torch.distributed as dist

_LOOK_S = 1.0


def let_go_of(groups: list[dist.ProcessGroup]) -> None:
    """Drop the references in `groups` as soon as nothing else refers to the groups. Empties the list. Does not
    wait."""
    threading.Thread(target=_let_go, args=(groups,), daemon=True, name="broken groups").start()


def _let_go(groups: list[dist.ProcessGroup]) -> None:
    while groups:
        time.sleep(_LOOK_S)
        for place in reversed(range(len(groups))):
            if sys.getrefcount(groups[place]) <= 2:  # the list's and the argument's
                del groups[place]  # may wait for ever
