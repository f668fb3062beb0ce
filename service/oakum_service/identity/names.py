"""The outcome of every kind of proof: a user's name and role."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from oakum_service.errors import Forbidden
from oakum_service.identity.tokens import LOCAL_ADMIN

_LONGEST_NAME = 63
OutsideRole = Literal["viewer", "user", "admin"]
"""The roles that somebody without a token of Oakum's own can have."""


@dataclass(frozen=True)
class Identity:
    """A user's name and role. Raises `Forbidden` for a name that no user can have: an empty or overlong one, one
    with characters that cannot be printed, or the one under which the service's own CLI owns trainers."""

    name: str
    role: OutsideRole

    def __post_init__(self) -> None:
        usable = self.name.strip() == self.name and self.name.isprintable() and 0 < len(self.name) <= _LONGEST_NAME
        if not usable or self.name == LOCAL_ADMIN:
            raise Forbidden(
                f"{self.name[:80]!r} cannot be a user's name here: expected 1 to {_LONGEST_NAME} printable "
                f"characters, and not {LOCAL_ADMIN!r}"
            )
