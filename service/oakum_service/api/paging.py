"""Pages of long lists: each answer names where the next one begins, by the last row's time and id.

Rows that are added meanwhile are newer than every page's begin, so each row is in one page exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import Query
from sqlalchemy import ColumnElement, tuple_
from sqlalchemy.orm import InstrumentedAttribute

from oakum_service.errors import RequestError

_R = TypeVar("_R")

Before = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9]{1,12}(\.[0-9]{1,17})?_[0-9a-zA-Z_.+-]{1,64}$",
        description="`next` of the page before: this page goes on from there",
    ),
]
"""The parameter in which a client sends the `next` of the last answer."""


class Place(NamedTuple):
    """A place in a list that is ordered by a time and an id."""

    at: float
    id: str | int

    def __str__(self) -> str:
        return f"{self.at!r}_{self.id}"


def place(before: str, kind: type[str] | type[int] = str) -> Place:
    """The place that `before` names; it has the form that `Before` checks. `kind` is the type of the ids. Raises
    `RequestError` where the id is not of that type."""
    at, _, id_ = before.partition("_")
    try:
        return Place(float(at), kind(id_))
    except ValueError:
        raise RequestError(
            f"before={before} is of another list: give the `next` of this list's last page"
        ) from None


def older_than(
    at: InstrumentedAttribute[Any], id_: InstrumentedAttribute[Any], where: Place
) -> ColumnElement[bool]:
    """Condition of the rows that come after `where`, the newest first."""
    return tuple_(at, id_) < tuple_(where.at, where.id)


def page(rows: Sequence[_R], limit: int) -> tuple[Sequence[_R], bool]:
    """The first `limit` rows, and whether there is another one."""
    return rows[:limit], len(rows) > limit
