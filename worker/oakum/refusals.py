"""What several adapters refuse alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oakum_worker.errors import SessionError

__all__ = ["refuse_arguments_of_backward"]


def refuse_arguments_of_backward(given: Mapping[str, Any]) -> None:
    """Raise `SessionError` for what a library hands on to torch's own `backward`, which a session calls itself."""
    names = ", ".join(name for name, value in given.items() if value is not None and value is not False)
    if names:
        raise SessionError(
            f"backward({names}=...): the session calls torch's backward itself; add the losses up and call "
            "backward once, or put the loop into oakum.session(...)"
        )
