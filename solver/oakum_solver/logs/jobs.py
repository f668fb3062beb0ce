"""A main scheduler's jobs as they are placed on nodes: times in seconds on one clock, sizes in whole nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job before anybody decided when it starts."""

    id: str
    submit_s: float
    run_s: float
    """How long it runs once started, whatever was requested."""
    nodes: int
    requested_s: float
    """The user's run-time estimate."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job with the start that it had."""

    id: str
    start_s: float
    end_s: float
    nodes: int
