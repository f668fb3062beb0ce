"""The newest crash of a trainer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NewestCrash:
    """The error that ended a trainer's newest attempt. Of a task that could not be built only the traceback is
    recorded."""

    at: float | None = None
    """When the service heard of the crash, in Unix seconds."""
    step: int = 0
    """Number of finished steps at the crash."""
    what: str = ""
    """What happened and what to do about it, for people."""
    error: str = ""
    """Identifies an error of the trainer's code; empty for crashes of another kind."""
    most: int = 0
    """Number of attempts that a trainer has if they end like this one."""
    traceback: str = ""
    beyond_at: float | None = None
    """When training was first heard to be beyond the step of the crash, in Unix seconds; None before that."""
