"""Picks from a log the lines that belong to errors: tracebacks, errors, warnings, but no launchers' messages."""

from __future__ import annotations

import re
from collections import defaultdict

from oakum_service.scheduler_table import launcher_lines

_OURS = re.compile(r"submitit |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ agent ")
"""Lines of submitit, and of Oakum's agents, which report when a node comes and goes."""
_ERROR = re.compile(
    r"\b\w*(Error|Exception|Warning|Interrupt)\b|\b(error|fatal|warning|killed|segmentation fault|assertion)\b",
    re.IGNORECASE,
)
_TRACEBACK = "Traceback (most recent call last):"
_BETWEEN = ("During handling of the above exception", "The above exception was the direct cause")


def error_lines(lines: list[str]) -> list[str]:
    """The lines that belong to an error or a warning; each line begins with its node's name."""
    inside: dict[str, bool] = defaultdict(bool)
    picked = []
    of_schedulers = launcher_lines()
    for line in lines:
        node, _, text = line.partition(" | ")
        if _OURS.match(text) or text.startswith(of_schedulers):
            continue
        if _TRACEBACK in text:
            inside[node] = True
            picked.append(line)
        elif inside[node]:
            # A traceback's lines are indented; the first that is not says what was raised.
            inside[node] = not text or text.startswith((" ", "\t"))
            picked.append(line)
        elif _ERROR.search(text) or text.startswith(_BETWEEN):
            picked.append(line)
    return picked
