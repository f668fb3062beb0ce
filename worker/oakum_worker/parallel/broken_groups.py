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
    """Drop each reference in `groups` as soon as nothing else refers to the group. Empties the list. Does not
    wait."""
    while groups:
        threading.Thread(target=_let_go, args=([groups.pop()],), daemon=True, name="broken group").start()


def _let_go(group: list[dist.ProcessGroup]) -> None:
    """`group` is a list of one, to which the only reference of this module belongs."""
    while sys.getrefcount(group[0]) > 2:  # the list's and the argument's
        time.sleep(_LOOK_S)
    group.clear()  # may wait for ever
