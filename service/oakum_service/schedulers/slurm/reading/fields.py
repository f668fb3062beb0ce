"""Parses single fields of Slurm's JSON, in the form of any version."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from oakum_solver.logs import node_lists

_NO_VALUES = frozenset({2**16 - 2, 2**32 - 2, 2**64 - 2})
_INFINITE = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})
"""The values of Slurm's INFINITE; `_NO_VALUES` are those of its NO_VAL. Old parsers write them as plain
numbers."""


class SetNumber(msgspec.Struct, gc=False):
    """A number as Slurm writes it from 23.02 on."""

    set: bool
    infinite: bool
    number: int | float


Number = int | float | SetNumber | None
"""A number in any version's form: until 22.05 a plain number, with null for unset or infinite."""
Text = str | None
Texts = list[str] | str | None
"""Several words in any version's form: a list from 23.02 on, a comma-separated string before."""


class FieldError(ValueError):
    """A field cannot be read; the message gives its name, its value and what was expected."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(value)}, expected {expected}")


def shown(value: object) -> str:
    """A value for a message, cut to the length of a line."""
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "..."


def number(value: Number) -> float | None:
    """The number, `inf` for an infinite one, None for an unset one."""
    if isinstance(value, SetNumber):
        if value.infinite:
            return math.inf
        return float(value.number) if value.set else None
    if value is None or value in _NO_VALUES:
        return None
    return math.inf if value in _INFINITE else float(value)


def moment(field: str, value: Number) -> float | None:
    """Unix seconds; None if unset, for which Slurm also writes 0. Raises `FieldError` for a negative number."""
    at = number(value)
    if at is not None and at < 0:
        raise FieldError(field, at, "Unix seconds")
    return at or None


def count(field: str, value: Number) -> int:
    """A count. Raises `FieldError` if it is unset, infinite or negative."""
    given = number(value)
    if given is None or not math.isfinite(given) or given < 0:
        raise FieldError(field, "not set" if given is None else given, "a number of 0 or more")
    return int(given)


@lru_cache(maxsize=65536)
def _check_list(folded: str) -> None:
    # Most jobs are those of the reading before.
    node_lists.check(folded)


def nodes(field: str, value: Text) -> str:
    """A folded node list, empty for None. Raises `FieldError` for what is none, or names more nodes than Slurm
    manages."""
    try:
        _check_list(value or "")
    except ValueError as error:
        raise FieldError(field, value, str(error)) from error
    return value or ""


def nodes_or_none(field: str, value: Text) -> str:
    """A folded node list as `nodes` returns it; empty for what is none."""
    try:
        return nodes(field, value)
    except FieldError:
        return ""


def words(value: Texts) -> tuple[str, ...]:
    """The words of a list, or of a comma-separated string."""
    if isinstance(value, str):
        value = value.split(",")
    return tuple(word for word in value or () if word)


def ordered_states(states: Sequence[str], bases: frozenset[str]) -> tuple[str, ...]:
    """The states, each once, with the base state (one of `bases`) first, then the flags in their order."""
    return tuple(sorted(dict.fromkeys(states), key=lambda state: state not in bases))
