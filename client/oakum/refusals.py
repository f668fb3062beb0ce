"""What several adapters refuse alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oakum_worker.errors import SessionError

__all__ = ["as_list", "refuse_arguments_of_backward", "refuse_float16"]

_FLOAT16 = {"16": "bf16-mixed", "16-mixed": "bf16-mixed", "16-true": "bf16-true"}
"""Precision of Lightning -> what to use in its place."""


def refuse_float16(precision: object) -> None:
    """Raise `SessionError` for a precision of Lightning that scales losses, or whose small gradients are 0."""
    if (instead := _FLOAT16.get(str(precision))) is not None:
        raise SessionError(
            f"precision={precision!r} or its plugin: the session does not know of scaled losses; use {instead!r}"
        )


def as_list(value: Any) -> list[Any]:
    """One or several objects, or None, as Lightning takes them."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def refuse_arguments_of_backward(given: Mapping[str, Any]) -> None:
    """Raise `SessionError` for what a library hands on to torch's own `backward`, which a session calls itself."""
    names = ", ".join(name for name, value in given.items() if value is not None and value is not False)
    if names:
        raise SessionError(
            f"backward({names}=...): the session calls torch's backward itself; add the losses up and call "
            "backward once, or put the loop into oakum.session(...)"
        )
