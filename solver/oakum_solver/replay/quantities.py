"""A replay's figures as people read them."""

from __future__ import annotations

import math

UNKNOWN = "–"
_SPACE = "\N{NO-BREAK SPACE}"
"""Between a number and its unit, which stay together."""


def percent(share: float) -> str:
    """`84.2 %`."""
    return f"{100 * share:.1f}{_SPACE}%" if math.isfinite(share) else UNKNOWN


def small_percent(share: float) -> str:
    """`0.018 %`: two digits however small."""
    return f"{100 * share:.2g}{_SPACE}%" if math.isfinite(share) else UNKNOWN


def count(number: float) -> str:
    """A whole number with thousands separated."""
    return f"{number:,.0f}" if math.isfinite(number) else UNKNOWN


def amount(number: float) -> str:
    """Nodes or node-hours: `12,345`, `123.4`, `0.1`."""
    if not math.isfinite(number):
        return UNKNOWN
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.1f}"


def days(seconds: float | None) -> str:
    """`42 s`, `12 min`, `3.2 h`, `5.1 days`."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for from_s, unit_s, unit in ((172_800, 86_400, "days"), (5_400, 3_600, "h"), (90, 60, "min")):
        if seconds >= from_s:
            return f"{seconds / unit_s:.3g}{_SPACE}{unit}"
    return f"{seconds:.3g}{_SPACE}s"


def milliseconds(value_ms: float) -> str:
    """`12 µs`, `3.4 ms`, `1.2 s`."""
    if not math.isfinite(value_ms):
        return UNKNOWN
    if value_ms < 0.1:
        return f"{1000 * value_ms:.2g}{_SPACE}µs"
    return f"{value_ms:.3g}{_SPACE}ms" if value_ms < 1000 else f"{value_ms / 1000:.3g}{_SPACE}s"
