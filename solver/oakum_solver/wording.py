"""Counts, amounts and times as people read them in sentences: one wording for reasons, events and terminals."""

from __future__ import annotations

_LEAST = 0.001
"""Amounts that are closer to 0 than this are only told to be so: no decision hangs on them."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """The number with its noun: `1 node`, `2 nodes`, `1,200 nodes`. `plural` where an s alone will not do."""
    return f"1 {noun}" if number == 1 else f"{number:,} {plural or noun + 's'}"


def amount(value: float) -> str:
    """A measured or computed number without its unit, rounded to what matters: `1,235`, `12.3`, `0.11`."""
    size = abs(value)
    if value and size < _LEAST:
        return f"less than {_LEAST:g}"
    return f"{value:,.0f}" if size >= 99.95 else f"{value:.3g}" if size >= 1 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Text for a number of seconds, in at most two units: `12 ms`, `0.31 s`, `42 s`, `1 min`, `3 min 05 s`,
    `2 h 10 min`, `3 d 4 h`."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{max(seconds, 0.0):.3g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        large, small = f"{whole // 60} min", f"{whole % 60:02} s"
    elif whole < 86400:
        large, small = f"{whole // 3600} h", f"{whole % 3600 // 60:02} min"
    else:
        large, small = f"{whole // 86400} d", f"{whole % 86400 // 3600} h"
    return large if int(small.split()[0]) == 0 else f"{large} {small}"
