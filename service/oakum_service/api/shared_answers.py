"""One computation for all who ask for the same answer while another one is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class SharedAnswers:
    """Computes answers one at a time. Those who ask for the same answer before its computation begins share it:
    they get one object, which none of them may change. Since the computation begins after each of them has asked,
    whoever has changed something before finds it in the answer."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._awaited: dict[Hashable, Future[Any]] = {}
        """Answers whose computation has not begun."""

    def get(self, key: Hashable, compute: Callable[[], T]) -> T:
        """What `compute` returns, called by whoever asked for `key` first. Raises what it raises."""
        with self._lock:
            answer: Future[T] | None = self._awaited.get(key)
            is_first = answer is None
            if answer is None:
                answer = self._awaited[key] = Future()
        if is_first:
            with self._turn:
                with self._lock:
                    del self._awaited[key]
                _settle(answer, compute)
        return answer.result()


def _settle(answer: Future[T], compute: Callable[[], T]) -> None:
    try:
        answer.set_result(compute())
    except BaseException as error:
        answer.set_exception(error)
