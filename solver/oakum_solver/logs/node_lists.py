"""Unfolds the node lists that Slurm writes, such as `n[001-003,007],r[1-2]c[0-3],login`, and folds lists for it.

The size of a list is computed from its text before anything is unfolded: `a[1-999999999]` is thirteen characters.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

MOST_NODES = 65_536
"""Most nodes of one list: the most that Slurm manages (MaxNodeCount)."""
# Possessive, so that a text of any length is read once, not again from each of its commas.
_TERM = re.compile(r"(?:[^\s,\[\]]|\[[0-9,-]++\])++")
_LIST = re.compile(rf"{_TERM.pattern}(?:,{_TERM.pattern})*+")
_PARTS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?[^0-9])([0-9]{1,9})")
_LONGEST_SHOWN = 80

_Range = tuple[range, int]
"""Numbers, and the width that zeros fill."""


def is_folded(text: str) -> bool:
    """Whether the text is a list with brackets, rather than one node's name."""
    return "[" in text and _LIST.fullmatch(text) is not None


def unfold(folded: str, most: int = MOST_NODES) -> tuple[str, ...]:
    """The nodes of a folded list, each once, in the list's order; none for an empty text.

    Raises `ValueError` for what is no list, and for a list of more than `most` nodes.
    """
    if not folded:
        return ()
    terms = _checked(folded, most)
    names = ("".join(name) for parts in terms for name in itertools.product(*map(_names, parts)))
    return tuple(dict.fromkeys(names))


def check(folded: str, most: int = MOST_NODES) -> None:
    """Raise `ValueError` as `unfold` does, without unfolding anything."""
    if folded:
        _checked(folded, most)


def fold(nodes: Iterable[str]) -> str:
    """One text for these nodes that every version of Slurm takes: some take brackets at the end of a name only. So
    only a number at a name's end is folded, and all other names are listed as they are."""
    plain: list[str] = []
    numbers: dict[tuple[str, int], list[int]] = {}
    for node in set(nodes):
        # Numbers of one width, since a range has the width of its first number.
        if (match := _NUMBERED.fullmatch(node)) is None:
            plain.append(node)
        else:
            numbers.setdefault((match[1], len(match[2])), []).append(int(match[2]))
    folded: dict[str, list[str]] = {}
    for (prefix, width), values in sorted(numbers.items()):
        folded.setdefault(prefix, []).extend(_folded_ranges(sorted(values), width))
    return ",".join(sorted([*plain, *(_bracketed(prefix, ranges) for prefix, ranges in folded.items())]))


def _bracketed(prefix: str, ranges: list[str]) -> str:
    alone = len(ranges) == 1 and "-" not in ranges[0]
    return prefix + (ranges[0] if alone else f"[{','.join(ranges)}]")


def _folded_ranges(numbers: list[int], width: int) -> list[str]:
    """The ranges of ascending numbers."""
    # In a run of consecutive numbers, each is as far from its place in the list as the others.
    runs = itertools.groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ends = [(run[0][1], run[-1][1]) for _, group in runs if (run := list(group))]
    return [f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "") for first, last in ends]


def _checked(folded: str, most: int) -> list[list[str | list[_Range]]]:
    """The parts of each term. Raises `ValueError`."""
    if not _LIST.fullmatch(folded):
        raise ValueError(f"node list {_shown(folded)}: expected one such as n[001-003,007],gpu1")
    terms = [_parts(folded, term) for term in _TERM.findall(folded)]
    size = sum(math.prod(map(_size, parts)) for parts in terms)
    if size > most:
        raise ValueError(f"node list {_shown(folded)} names {size:,} nodes: expected at most {most:,}")
    return terms


def _parts(folded: str, term: str) -> list[str | list[_Range]]:
    """The parts of a term: texts, and the ranges in brackets."""
    return [
        [_range(folded, one) for one in text.split(",")] if at % 2 else text
        for at, text in enumerate(_PARTS.split(term))
    ]


def _range(folded: str, text: str) -> _Range:
    ends = _RANGE.fullmatch(text)
    if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
        raise ValueError(f"node list {_shown(folded)}: {text[:40]!r} is no range such as 001-003")
    return range(int(ends[1]), int(ends[2] or ends[1]) + 1), len(ends[1])


def _size(part: str | list[_Range]) -> int:
    return 1 if isinstance(part, str) else sum(len(numbers) for numbers, _ in part)


def _names(part: str | list[_Range]) -> list[str]:
    if isinstance(part, str):
        return [part]
    return [f"{number:0{width}}" for numbers, width in part for number in numbers]


def _shown(folded: str) -> str:
    return repr(folded if len(folded) <= _LONGEST_SHOWN else folded[:_LONGEST_SHOWN] + "...")
