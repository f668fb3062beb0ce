"""How often the scheduler is asked, and how long it takes: what an admin wants to see bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Counter, Histogram

CALLS = Counter("oakum_scheduler_calls_total", "Commands and requests that the scheduler was sent.", ["command"])
FAILURES = Counter("oakum_scheduler_call_failures_total", "Those of them that failed.", ["command"])
SECONDS = Histogram(
    "oakum_scheduler_call_seconds",
    "Seconds that the scheduler took to answer.",
    ["command"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)


@contextmanager
def counted(command: str) -> Iterator[None]:
    """Count one call, its seconds, and its failure if it raises. `command` is one of a few names, never an id."""
    CALLS.labels(command).inc()
    began = time.monotonic()
    try:
        yield
    except Exception:
        FAILURES.labels(command).inc()
        raise
    finally:
        SECONDS.labels(command).observe(time.monotonic() - began)
