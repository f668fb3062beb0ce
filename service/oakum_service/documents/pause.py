"""A trainer's pause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pause:
    """A pause that is in force: who has begun it, when, and why."""

    since: float
    """In Unix seconds."""
    by: str
    """Name of the token that began it."""
    reason: str = ""
