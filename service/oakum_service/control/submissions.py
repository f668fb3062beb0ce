"""Which fragments are being submitted, so that a snapshot without their jobs is not taken for their end."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class Submissions:
    """The fragments that have a row in the database and may have no job at the scheduler yet. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._watched: list[set[str]] = []

    def begin(self, fragments: Iterable[str]) -> None:
        """Count these fragments as under way. Call this before their rows are committed, so that nobody sees a row
        of a fragment that does not count yet."""
        with self._lock:
            begun = set(fragments)
            for fragments_seen in (self._under_way, *self._watched):
                fragments_seen |= begun

    def end(self, fragments: Iterable[str]) -> None:
        """Count these fragments as under way no more: the scheduler has answered, and their rows say so."""
        with self._lock:
            self._under_way.difference_update(fragments)

    def under_way(self) -> frozenset[str]:
        """Ids of the fragments whose submission has begun and not ended."""
        with self._lock:
            return frozenset(self._under_way)

    @contextmanager
    def watched(self) -> Iterator[Collection[str]]:
        """Ids of all fragments that are under way at some moment of the context. The collection grows as further
        submissions begin, and keeps those that end."""
        with self._lock:
            under_way = set(self._under_way)
            self._watched.append(under_way)
        try:
            yield under_way
        finally:
            with self._lock:
                self._watched = [others for others in self._watched if others is not under_way]
