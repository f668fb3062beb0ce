"""Has Hypothesis try the same examples in every run of a test."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants


def ignore_constants_of_modules() -> None:
    """Where examples are not random, keep them from hanging on which modules are imported.

    Hypothesis also tries the constants that it finds in the sources of the modules imported so far: of other ones
    in each worker. It has no setting for that.
    """
    if settings.default is not None and settings.default.derandomize:
        providers._get_local_constants = Constants
