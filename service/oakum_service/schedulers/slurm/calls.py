"""Metrics of the calls to Slurm: how many there are, how many fail, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from oakum_service.instruments import CALL_FAILURES, CALL_S, CALLS


@contextmanager
def counted(command: str) -> Iterator[None]:
    """Context of one call to Slurm: counts the call, its duration, and its failure if it raises. `command` is the
    metrics' label, one of a few names, never an id."""
    CALLS.labels(command).inc()
    began = time.monotonic()
    try:
        yield
    except Exception:
        CALL_FAILURES.labels(command).inc()
        raise
    finally:
        CALL_S.labels(command).observe(time.monotonic() - began)
