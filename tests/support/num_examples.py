"""The number of examples that property tests try: few in `make test`, many in `make soak`."""

from __future__ import annotations

from hypothesis import settings

_USUAL = 100
"""Hypothesis's own number, which is meant where a test names none."""


def scaled(usual: int) -> int:
    """The share of `usual` examples that the profile in use asks for, at least one."""
    return max(usual * settings().max_examples // _USUAL, 1)
