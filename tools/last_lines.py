"""The end of a long text, as it is shown with a failure."""

from __future__ import annotations

LONGEST_LINE = 300


def last_lines(text: str, number: int) -> str:
    """The text's last lines, long ones cut, with a first line that says how many there were."""
    lines = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} [...]" for line in text.splitlines()]
    cut = [f"[the last {number} of {len(lines)} lines]"] if len(lines) > number else []
    return "\n".join([*cut, *lines[-number:]])
