"""Which fragments are being submitted, so that a snapshot without their jobs is not taken for their end."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager


class Submissions:
    """The fragments whose rows are committed and whose jobs may not exist yet. Any thread may ask or change it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: set[str] = set()
        self._watched: list[set[str]] = []

    def begin(self, fragments: Iterable[str]) -> None:
        """Note that these fragments are about to be submitted; to be called before their rows are committed."""
        with self._lock:
            begun = set(fragments)
            for known in (self._under_way, *self._watched):
                known |= begun

    def end(self, fragments: Iterable[str]) -> None:
        """Note that the scheduler has answered for these fragments, and that their rows say so."""
        with self._lock:
            self._under_way.difference_update(fragments)

    def under_way(self) -> frozenset[str]:
        """The fragments that are being submitted now."""
        with self._lock:
            return frozenset(self._under_way)

    @contextmanager
    def watched(self) -> Iterator[Collection[str]]:
        """The fragments that are being submitted at any time within the context: one that begins meanwhile is
        added at once, and one that ends meanwhile stays."""
        with self._lock:
            seen = set(self._under_way)
            self._watched.append(seen)
        try:
            yield seen
        finally:
            with self._lock:
                self._watched = [others for others in self._watched if others is not seen]
