"""A scheduler that does not answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Silence:
    """A scheduler that does not answer at present."""

    since: float
    """When it was asked the first question that it has not answered, in Unix seconds."""
    tried: str
    """What it was asked last and what came of that, as a clause."""
