"""How tests wait for events: with a deadline that is far longer than the event takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
DEADLINE_S = 240.0
"""For what is waited for, on a machine however busy: nothing hangs on how soon it comes."""


def wait_until(
    what: str,
    probe: Callable[[], T | None],
    timeout_s: float = DEADLINE_S,
    now: Callable[[], object] = lambda: "",
) -> T:
    """Call `probe` again and again until it returns something true, and return that.

    Fails after the deadline with the message `what`, in which `{}` is replaced by the value of `now`, and with
    what `probe` returned last.
    """
    began_s = time.monotonic()
    while not (found := probe()):
        waited_s = time.monotonic() - began_s
        if waited_s >= timeout_s:
            last = "" if found is None or found is False else f" (last seen: {found!r})"
            raise AssertionError(f"not within {timeout_s:g} s: {what.replace('{}', str(now()))}{last}")
        # Probes take CPU time from what is waited for: the longer that takes, the rarer they are.
        time.sleep(min(max(waited_s / 20, 0.05), 0.5))
    return found
