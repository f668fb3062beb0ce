"""Durations that were measured of a trainer and are expected again: stalls by kind, and start-up of fragments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

START_UP = "start_up"
"""Beside the kinds of stalls."""
_KEPT = 7
"""A single slow one says nothing of the next; an old one says nothing of now."""

Measured = Mapping[str, list[float]]
"""Kind -> the newest few, in seconds, the newest last: what the trainer's row keeps."""


@dataclass(frozen=True)
class Duration:
    """What is known of one kind."""

    median_s: float
    """Of the newest few."""
    last_s: float
    count: int
    """How many these few are."""


def with_another(measured: Measured, kind: str, seconds: float) -> dict[str, list[float]]:
    """The same with one more, and without those that are too old."""
    return {**measured, kind: [*measured.get(kind, ())[1 - _KEPT :], seconds]}


def duration(measured: Measured, kind: str) -> Duration | None:
    """What is known of the kind, or None before the first."""
    newest = measured.get(kind)
    return None if not newest else Duration(median(newest), newest[-1], len(newest))


def expected_s(measured: Measured, kind: str, otherwise_s: float) -> float:
    """Seconds that the next of this kind is expected to take; `otherwise_s` before the first."""
    known = duration(measured, kind)
    return otherwise_s if known is None else known.median_s
