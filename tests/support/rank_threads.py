"""Threads that stand for ranks.

They are daemons. Where one hangs, neither a test that its time limit ends nor the end of pytest waits for it: both
wait for the threads of a `ThreadPoolExecutor`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class RankThreads(Generic[R]):
    """Calls a function for each rank, each in a thread of its own."""

    def __init__(self, function: Callable[..., R], *arguments: Iterable[Any]) -> None:
        """Begin the calls. The arguments are as `map` takes them."""
        self._threads: list[threading.Thread] = []
        self._outcomes: list[Future[R]] = []
        for of_rank in zip(*arguments, strict=True):
            outcome: Future[R] = Future()
            self._outcomes.append(outcome)
            self._threads.append(threading.Thread(target=_call, args=(outcome, function, *of_rank), daemon=True))
        for thread in self._threads:
            thread.start()

    def outcomes(self) -> list[Future[R]]:
        """Wait for all; returns each rank's result or error."""
        for thread in self._threads:
            thread.join()
        return self._outcomes

    def results(self) -> list[R]:
        """Wait for all; returns each rank's result. Raises the first rank's error."""
        return [outcome.result() for outcome in self.outcomes()]


def _call(outcome: Future[R], function: Callable[..., R], *arguments: Any) -> None:
    try:
        outcome.set_result(function(*arguments))
    except BaseException as error:
        outcome.set_exception(error)
