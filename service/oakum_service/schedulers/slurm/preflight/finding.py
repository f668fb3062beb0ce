"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    NOTE = "note"
    """Good to know; nothing has to change."""
    WARNING = "warning"
    """Oakum works, but less well than it could, or a promise does not hold in some case."""
    ERROR = "error"
    """Oakum does not work, or foreground jobs would wait for it."""


@dataclass(frozen=True)
class PreflightFinding:
    """The result of one check: how serious it is, what was found, and what to change."""

    level: Level
    subject: str
    found: str
    change: str = ""
    """The line to write or the command to run; empty if there is nothing to do."""


def ok(subject: str, found: str) -> PreflightFinding:
    """A finding of the level OK, with nothing to change."""
    return PreflightFinding(Level.OK, subject, found)


def note(subject: str, found: str, change: str = "") -> PreflightFinding:
    """A finding of the level NOTE: good to know, nothing has to change."""
    return PreflightFinding(Level.NOTE, subject, found, change)


def warning(subject: str, found: str, change: str = "") -> PreflightFinding:
    """A finding of the level WARNING: it should be changed."""
    return PreflightFinding(Level.WARNING, subject, found, change)


def error(subject: str, found: str, change: str = "") -> PreflightFinding:
    """A finding of the level ERROR: it must be changed."""
    return PreflightFinding(Level.ERROR, subject, found, change)
