"""Texts of others for a terminal: without what it would not show but obey."""

from __future__ import annotations

import re

_OBEYED = re.compile(
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"  # a command to the terminal, such as a colour
    r"|\x1b[\]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\)?"  # a string to the terminal, such as its title
    r"|\x1b[ -/]*+[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"  # shows what follows in another order
)


def plain(text: str) -> str:
    """The text without commands to a terminal and without control characters, but for tabs and ends of lines."""
    return _OBEYED.sub("", text)
