"""What the preflight found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing has to change."""
    WARNING = "warning"
    """Oakum works, but worse than it could, or a promise does not hold in some case."""
    ERROR = "error"
    """Oakum does not work, or foreground jobs would wait for it."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    subject: str
    found: str
    change: str = ""
    """The line to write or the command to run; empty where nothing is to be done."""


def ok(subject: str, found: str) -> Finding:
    """It is as it should be."""
    return Finding(Level.OK, subject, found)


def note(subject: str, found: str, change: str = "") -> Finding:
    """It is worth knowing."""
    return Finding(Level.NOTE, subject, found, change)


def warning(subject: str, found: str, change: str = "") -> Finding:
    """It should be otherwise."""
    return Finding(Level.WARNING, subject, found, change)


def error(subject: str, found: str, change: str = "") -> Finding:
    """It must be otherwise."""
    return Finding(Level.ERROR, subject, found, change)
