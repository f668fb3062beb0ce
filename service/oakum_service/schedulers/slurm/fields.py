"""Single fields of Slurm's JSON, in every shape that a version gives them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

_NO_VALUES = frozenset({2**16 - 2, 2**32 - 2, 2**64 - 2})
_INFINITE = frozenset({2**16 - 1, 2**32 - 1, 2**64 - 1})
"""Slurm's NO_VAL and INFINITE, which old parsers let through as numbers."""


class SetNumber(msgspec.Struct, gc=False):
    """A number from 23.02 on."""

    set: bool
    infinite: bool
    number: int | float


Number = int | float | SetNumber | None
"""A plain one until 22.05, with null for what is not set, or infinite."""
Text = str | None
Texts = list[str] | str | None
"""A list from 23.02 on, before that comma-separated."""


class FieldError(ValueError):
    """One field cannot be read: its name, its value and what was expected."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        super().__init__(f"{field} is {shown(value)}, expected {expected}")


def shown(value: object) -> str:
    """A value for a message, never longer than a line."""
    text = repr(value)
    return text if len(text) <= 120 else text[:120] + "..."


def number(value: Number) -> float | None:
    """A number, `inf`, or None where it is not set."""
    if isinstance(value, SetNumber):
        if value.infinite:
            return math.inf
        return float(value.number) if value.set else None
    if value is None or value in _NO_VALUES:
        return None
    return math.inf if value in _INFINITE else float(value)


def moment(field: str, value: Number) -> float | None:
    """Unix seconds; None where it is open, for which Slurm writes 0 as well."""
    at = number(value)
    if at is not None and at < 0:
        raise FieldError(field, at, "Unix seconds")
    return at or None


def count(field: str, value: Number) -> int:
    """How many of something. Raises `FieldError` where that is not told."""
    given = number(value)
    if given is None or not math.isfinite(given) or given < 0:
        raise FieldError(field, "not set" if given is None else given, "a number of 0 or more")
    return int(given)


def words(value: Texts) -> tuple[str, ...]:
    """The words of a list, or of a comma-separated string."""
    if isinstance(value, str):
        value = value.split(",")
    return tuple(word for word in value or () if word)


def ordered_states(states: Sequence[str], bases: frozenset[str]) -> tuple[str, ...]:
    """The base state first, then the flags as they came."""
    return tuple(sorted(dict.fromkeys(states), key=lambda state: state not in bases))
