"""Lists of names in messages."""

from __future__ import annotations

from collections.abc import Sequence


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first `most` names, divided by commas, and how many more there are: "a, b, c and 2 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
