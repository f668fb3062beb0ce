"""What the present work is about: the ids of a trainer, a fragment, a plan or a request, for the lines that it
writes to the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_PRESENT: ContextVar[Mapping[str, object]] = ContextVar("fields of log lines", default={})  # noqa: B039


def present_fields() -> Mapping[str, object]:
    """Names and values of all that the present work is about."""
    return _PRESENT.get()


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Context whose lines in the log have these fields, beside those of contexts around it. Threads that are
    started within have them only if they are given a copy of the context."""
    before = _PRESENT.set({**_PRESENT.get(), **fields})
    try:
        yield
    finally:
        _PRESENT.reset(before)
