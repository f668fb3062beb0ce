"""Exact fractions of numbers that people write and clocks measure."""

from __future__ import annotations

import math
from fractions import Fraction

from oakum_solver.errors import ProblemError


def exact(number: float) -> Fraction:
    """The fraction that the number's shortest decimal form stands for: 0.8 is 4/5, and not a little more."""
    return Fraction(repr(number))


def positive(name: str, number: float) -> Fraction:
    """The exact fraction of a number that has to be finite and above 0. Raises `ProblemError` that names it."""
    if not 0 < number < math.inf:
        raise ProblemError(f"{name} is {number}: expected a finite number above 0")
    return exact(number)


def not_negative(name: str, number: float) -> Fraction:
    """The exact fraction of a number that has to be finite and at least 0. Raises `ProblemError` that names it."""
    if not 0 <= number < math.inf:
        raise ProblemError(f"{name} is {number}: expected a finite number, at least 0")
    return exact(number)
