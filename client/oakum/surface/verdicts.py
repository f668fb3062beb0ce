"""What becomes of a library's name under an adapter, and tables of such answers that are short to write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Means", "Refused", "Supported", "Verdict", "means", "merged", "refused", "supported"]


@dataclass(frozen=True, slots=True)
class Supported:
    """Works as in the library, at any number of nodes."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Raises `SessionError`, which says what to do."""

    advice: str
    """What to do in its place."""
    given: str = ""
    """The values that are refused, where others work as in the library; empty where every value but the default
    is refused."""


@dataclass(frozen=True, slots=True)
class Means:
    """Works, and means something else than in the library."""

    what: str
    """One sentence, which follows the name."""
    advice: str = ""
    """What to do in its place, where the adapter should refuse the name and does not yet; empty where it stays."""


Verdict = Supported | Refused | Means


def supported(names: str) -> dict[str, Verdict]:
    """These names, divided by spaces, work as in the library."""
    return _each(names, Supported())


def refused(names: str, advice: str, given: str = "") -> dict[str, Verdict]:
    """These names, divided by spaces, are refused with this advice."""
    return _each(names, Refused(advice, given))


def means(names: str, what: str, advice: str = "") -> dict[str, Verdict]:
    """These names, divided by spaces, mean something else; with advice where they should be refused."""
    return _each(names, Means(what, advice))


def merged(*groups: Mapping[str, Verdict]) -> dict[str, Verdict]:
    """One table of several groups. Raises `ValueError` for a name that is in two of them."""
    table: dict[str, Verdict] = {}
    for group in groups:
        if twice := table.keys() & group.keys():
            raise ValueError(f"named twice: {', '.join(sorted(twice))}")
        table |= group
    return table


def _each(names: str, verdict: Verdict) -> dict[str, Verdict]:
    table: dict[str, Verdict] = dict.fromkeys(names.split(), verdict)
    if len(table) < len(names.split()):
        raise ValueError(f"a name twice: {names}")
    return table
