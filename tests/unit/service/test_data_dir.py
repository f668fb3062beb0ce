"""Who may use a data directory at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from oakum_service.errors import ConfigurationError
from oakum_service.files.data_dir import DataDirLock
from waiting import DEADLINE_S


class Locks:
    """Locks of one data directory, released at the test's end. Two of one process exclude each other as two
    processes' do."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: list[DataDirLock] = []

    def take(self, *, may_share: bool) -> DataDirLock:
        self._made.append(DataDirLock(self._folder, may_share=may_share))
        return self._made[-1]

    def release_all(self) -> None:
        for lock in self._made:
            lock.release()


@pytest.fixture
def locks(tmp_path: Path) -> Iterator[Locks]:
    made = Locks(tmp_path / "data")
    yield made
    made.release_all()


def test_the_first_lets_others_of_the_same_database_in(locks: Locks) -> None:
    first = locks.take(may_share=True)
    first.share("one")
    second = locks.take(may_share=True)
    second.share("one")
    assert (first.is_first, second.is_first) == (True, False)
    third = locks.take(may_share=True)
    with pytest.raises(ConfigurationError, match=r"uses .*data with another database: give both the same"):
        third.share("two")


def test_who_comes_while_the_first_begins_waits_for_it(locks: Locks) -> None:
    first = locks.take(may_share=True)
    came: list[bool] = []
    coming = threading.Thread(target=lambda: came.append(locks.take(may_share=True).is_first))
    coming.start()
    coming.join(0.3)
    assert came == []
    first.share("one")
    coming.join(DEADLINE_S)
    assert came == [False]


def test_a_service_that_needs_the_directory_for_itself_is_kept_out(locks: Locks) -> None:
    locks.take(may_share=True).share("one")
    with pytest.raises(ConfigurationError, match=r"another service \(pid \d+\) already uses"):
        locks.take(may_share=False)


def test_the_next_to_come_after_all_have_gone_is_the_first_again(locks: Locks) -> None:
    locks.take(may_share=True).share("one")
    locks.release_all()
    last = locks.take(may_share=True)
    assert last.is_first
    last.share("two")
