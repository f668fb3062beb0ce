"""How tests wait: for events, with a deadline that has nothing to do with how soon they come."""

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
    """Poll until `probe` returns something true, and return that; `{}` in `what` becomes what there is `now`."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := probe()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what.replace('{}', str(now()))}"
        time.sleep(0.05)
    return found
