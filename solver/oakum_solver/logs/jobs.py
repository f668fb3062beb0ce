"""Jobs of the main scheduler, ready to be placed on nodes: times in seconds on one clock, sizes in whole nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job with its submission but without a start time."""

    id: str
    submit_s: float
    run_s: float
    """Actual run time in seconds, which may exceed the request."""
    nodes: int
    requested_s: float
    """The user's run-time estimate."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job whose start time is known, and its size."""

    id: str
    start_s: float
    end_s: float
    nodes: int
