"""Writes what many callers bring at once in few transactions: a transaction costs more than the rows in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatchWriter(Generic[Item, Result]):
    """Writes items in a thread of its own; those that arrive during a write are written together in the next."""

    def __init__(self, write: Callable[[Sequence[Item]], Sequence[Result]], name: str) -> None:
        """`write` writes items in one transaction and returns one result for each; `name` is the thread's."""
        self._write = write
        self._lock = threading.Lock()
        self._waiting: list[tuple[Item, Future[Result]]] = []
        self._is_writing = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def submit(self, item: Item) -> Future[Result]:
        """Have the item written; the future gets its result, or the error of the write."""
        result: Future[Result] = Future()
        # A caller that stops waiting must not cancel the write.
        result.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append((item, result))
            begins = not self._is_writing
            self._is_writing = True
        if begins:
            self._thread.submit(self._write_all)
        return result

    def _write_all(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                self._is_writing = bool(waiting)
            if not waiting:
                return
            try:
                results = self._write([item for item, _ in waiting])
            except Exception as error:
                for _, future in waiting:
                    future.set_exception(error)
                continue
            for (_, future), result in zip(waiting, results, strict=True):
                future.set_result(result)
