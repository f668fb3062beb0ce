"""Answers that several ask for at the same time are computed once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from oakum_service.api.shared_answers import SharedAnswers
from waiting import DEADLINE_S, wait_until


class Key:
    """A key of a dictionary that records the threads by which it was looked up."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def __hash__(self) -> int:
        self.threads.add(threading.get_ident())
        return 1


def test_those_who_ask_while_an_answer_is_computed_share_the_next_one() -> None:
    answers, begun, may_end = SharedAnswers(), threading.Event(), threading.Event()
    computed: list[str] = []

    def compute_old() -> str:
        begun.set()
        assert may_end.wait(DEADLINE_S)
        computed.append("old")
        return "old"

    def compute_new() -> str:
        computed.append("new")
        return "new"

    key = Key()
    with ThreadPoolExecutor() as threads:
        first = threads.submit(answers.get, "other", compute_old)
        assert begun.wait(DEADLINE_S)
        later = [threads.submit(answers.get, key, compute_new) for _ in range(3)]
        wait_until("three threads ask", lambda: len(key.threads) == len(later))
        may_end.set()
        assert first.result(DEADLINE_S) == "old"
        assert [each.result(DEADLINE_S) for each in later] == ["new"] * 3
    assert computed == ["old", "new"]


def test_an_error_goes_to_whoever_asked_and_the_next_one_asks_anew() -> None:
    answers = SharedAnswers()

    def fail() -> str:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        answers.get("list", fail)
    assert answers.get("list", lambda: "a disk") == "a disk"
