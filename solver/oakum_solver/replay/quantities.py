"""Formats a replay's figures for readers."""

from __future__ import annotations

import math

UNKNOWN = "–"
_SPACE = "\N{NO-BREAK SPACE}"
"""A no-break space, between a number and its unit."""


def percent(share: float) -> str:
    """Text for a share as a percentage, such as `84.2 %`; a mark for NaN and infinity."""
    return f"{100 * share:.1f}{_SPACE}%" if math.isfinite(share) else UNKNOWN


def small_percent(share: float) -> str:
    """Text for a share as a percentage with two significant digits, such as `0.018 %`; a mark for NaN and
    infinity."""
    return f"{100 * share:.2g}{_SPACE}%" if math.isfinite(share) else UNKNOWN


def count(number: float) -> str:
    """Text for a whole number, with commas between thousands; a mark for NaN and infinity."""
    return f"{number:,.0f}" if math.isfinite(number) else UNKNOWN


def amount(number: float) -> str:
    """Text for a number of nodes or node-hours: `12,345`, `123.4`, `0.1`; a mark for NaN and infinity."""
    if not math.isfinite(number):
        return UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.1f}"


def ratio(number: float) -> str:
    """Text for how many times as much something is, such as `2.50 times`; a mark for NaN and infinity."""
    return f"{number:,.2f}{_SPACE}times" if math.isfinite(number) else UNKNOWN


def days(seconds: float | None) -> str:
    """Format seconds in the unit that suits their size: `42 s`, `12 min`, `3.2 h`, `5.1 days`; a mark for None,
    NaN and infinity."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for from_s, unit_s, unit in ((172_800, 86_400, "days"), (5_400, 3_600, "h"), (90, 60, "min")):
        if seconds >= from_s:
            return f"{seconds / unit_s:.3g}{_SPACE}{unit}"
    return f"{seconds:.3g}{_SPACE}s"


def milliseconds(value_ms: float) -> str:
    """Text for a number of milliseconds: `12 µs`, `3.4 ms`, `1.2 s`; a mark for NaN and infinity."""
    if not math.isfinite(value_ms):
        return UNKNOWN
    if value_ms < 0.1:
        return f"{1000 * value_ms:.2g}{_SPACE}µs"
    return f"{value_ms:.3g}{_SPACE}ms" if value_ms < 1000 else f"{value_ms / 1000:.3g}{_SPACE}s"
