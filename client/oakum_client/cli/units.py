"""Formats and parses quantities for people."""

from __future__ import annotations

import re
import time

import typer

_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def parse_duration(text: str) -> float:
    """The seconds that `text` tells: `90`, `90s`, `15m`, `1.5h` or `2d`. Raises typer's `BadParameter` for
    anything else."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 15m, 1.5h or 2d")
    return float(match[1]) * _UNIT_S[match[2] or "s"]


def duration(seconds: float) -> str:
    """Text for a number of seconds, in at most two units: `12 ms`, `0.31 s`, `42 s`, `3 min 05 s`, `2 h 10 min`,
    `3 d 4 h`."""
    if 0 < seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 10:
        return f"{max(seconds, 0.0):.3g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def age(at: float) -> str:
    """Text for how long ago the moment `at` (Unix seconds) was, in the largest unit: `42 s`, `3 min`, `2 h`, `5
    d`."""
    seconds = max(round(time.time() - at), 0)
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{seconds // unit_s} {unit}"
    return f"{seconds} s"


def clock(at: float) -> str:
    """Text for the moment `at` (Unix seconds) in local time; with the date unless it is today."""
    moment = time.localtime(at)
    today = time.localtime()[:3] == moment[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", moment)


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
