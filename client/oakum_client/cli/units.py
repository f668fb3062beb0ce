"""Formats and parses quantities for people."""

from __future__ import annotations

import re
import time

import typer

from oakum_solver.wording import duration as duration

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def parse_duration(text: str) -> float:
    """The seconds that `text` tells: `90`, `90s`, `15m`, `1.5h` or `2d`. Raises typer's `BadParameter` for
    anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 15m, 1.5h or 2d")
    return float(match[1]) * _UNIT_S[match[2] or "s"]


def age(at: float) -> str:
    """Text for how long ago the moment `at` (Unix seconds) was, in the largest unit: `42 s`, `3 min`, `2 h`, `5
    d`."""
    seconds = max(round(time.time() - at), 0)
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"


def clock(at: float) -> str:
    """Text for the moment `at` (Unix seconds) in UTC, as in all sentences; with the date unless it is today."""
    moment = time.gmtime(at)
    today = time.gmtime()[:3] == moment[:3]
    return time.strftime("%H:%M:%S UTC" if today else "%Y-%m-%d %H:%M:%S UTC", moment)


def count(number: float) -> str:
    """Text for a whole number, with commas between thousands."""
    return f"{number:,.0f}"


def rate(samples_per_s: float | None) -> str:
    """A throughput without its unit; `-` if unknown."""
    if samples_per_s is None:
        return "-"
    return f"{samples_per_s:,.0f}" if samples_per_s >= 100 else f"{samples_per_s:.3g}"


def decimal(number: float | None) -> str:
    """Text for a number such as a loss, to four significant digits; `-` for None."""
    return "-" if number is None else f"{number:.4g}"
