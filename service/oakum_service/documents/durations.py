"""Measured durations that predict the next ones of a trainer: stalls by cause, and start-ups of fragments."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

START_UP = "start_up"
"""The kind of a start-up, from a fragment's launch until it trains; the other kinds are the causes of stalls."""
_KEPT = 7
"""Number of measurements kept of each kind: one slow value should not decide, and old ones say little about
now."""

Measured = dict[str, tuple[float, ...]]
"""Kind -> its newest measurements in seconds, the newest last."""


@dataclass(frozen=True)
class Duration:
    """Summary of the measurements of one kind."""

    median_s: float
    """Median of the kept measurements, in seconds."""
    last_s: float
    count: int
    """Number of kept measurements."""


def with_another(measured: Measured, kind: str, seconds: float) -> Measured:
    """The measurements with one more of this kind, and without the oldest if there are too many."""
    return {**measured, kind: (*measured.get(kind, ())[1 - _KEPT :], seconds)}


def duration(measured: Measured, kind: str) -> Duration | None:
    """Summary of the kind's measurements; None if there are none."""
    newest = measured.get(kind)
    return None if not newest else Duration(median(newest), newest[-1], len(newest))


def expected_s(measured: Measured, kind: str, otherwise_s: float) -> float:
    """Expected seconds of the next duration of this kind: the median, or `otherwise_s` before the first
    measurement."""
    past = duration(measured, kind)
    return otherwise_s if past is None else past.median_s
