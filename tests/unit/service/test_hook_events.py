"""Writing hook events down while the database is busy, or fails under one of those who wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from sqlalchemy.orm import Session

from cells import each
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import HookEventRecord
from oakum_service.schedulers.port import HookEvent
from oakum_service.schedulers.slurm.hooks.event_writer import HookEventWriter
from oakum_service.schedulers.slurm.hooks.report import Hook, HookReport, check_nodes, parse_nodes
from oakum_service.schedulers.slurm.hooks.rows import HookResult


class GatedSessions:
    """Sessions whose first transaction ends only when it is let go, and then perhaps fails."""

    def __init__(self, sessions: Sessions, *, fails: bool) -> None:
        self._sessions = sessions
        self._fails = fails
        self.transactions = 0
        self.entered, self.gate = threading.Event(), threading.Event()

    @contextmanager
    def begin(self) -> Iterator[Session]:
        self.transactions += 1
        is_first = self.transactions == 1
        with self._sessions.begin() as session:
            yield session
            if is_first:
                self.entered.set()
                assert self.gate.wait(10.0)
                if self._fails:
                    raise OSError("disk full")


def prolog(node: str) -> HookReport:
    now = time.time()
    return HookReport(Hook.PROLOG, "test", 7, 0, node, "n[1-9]", 1000, "batch", now, None, now)


def journal_over(sessions: GatedSessions) -> tuple[HookEventWriter, list[HookEvent]]:
    told: list[HookEvent] = []
    return HookEventWriter(cast(Any, sessions), told.append), told


def heard(sessions: Sessions) -> list[tuple[int, str]]:
    with sessions.begin() as session:
        return [(row.count, row.heard["prolog"]) for row in session.query(HookEventRecord)]


def test_those_who_come_while_one_writes_are_written_together(sessions: Sessions) -> None:
    gated = GatedSessions(sessions, fails=False)
    journal, told = journal_over(gated)
    first = journal.submit([prolog("n1")])
    assert gated.entered.wait(10.0)
    rest = [journal.submit([prolog(f"n{number}")]) for number in range(2, 10)]
    gated.gate.set()
    assert [one.result(10.0) for one in (first, *rest)] == [[HookResult.TAKEN]] * 9
    assert gated.transactions == 2
    assert (heard(sessions), len(told)) == ([(9, "n[1-9]")], 1)


def test_a_write_that_fails_is_an_error_for_those_in_it_and_for_nobody_else(sessions: Sessions) -> None:
    gated = GatedSessions(sessions, fails=True)
    journal, told = journal_over(gated)
    first = journal.submit([prolog("n1")])
    assert gated.entered.wait(10.0)
    rest = [journal.submit([prolog(f"n{number}")]) for number in range(2, 10)]
    gated.gate.set()
    with pytest.raises(OSError, match="disk full"):
        first.result(10.0)
    assert [one.result(10.0) for one in rest] == [[HookResult.TAKEN]] * 8
    assert journal.submit([prolog("n1"), prolog("n2")]).result(10.0) == [HookResult.TAKEN, HookResult.DUPLICATE]
    assert (heard(sessions), len(told)) == ([(9, "n[1-9]")], 1)


def test_who_no_longer_waits_takes_nothing_back(sessions: Sessions) -> None:
    gated = GatedSessions(sessions, fails=False)
    journal, told = journal_over(gated)
    results = journal.submit([prolog("n1")])
    assert not results.cancel()
    gated.gate.set()
    assert journal.submit([prolog("n2")]).result(10.0) == [HookResult.TAKEN]
    assert (heard(sessions), len(told)) == ([(2, "n[1-2]")], 1)


@each(
    ("folded", "num_nodes"),
    [("", 0), ("n1", 1), ("n[001-003,007],gpu[1-2]", 6), ("r[1-2]n[1-4]", 8), ("n[1-65536]", 65_536)],
)
def test_a_folded_list_of_any_cluster_is_read(folded: str, num_nodes: int) -> None:
    assert len(parse_nodes(folded)) == num_nodes


@each("folded", ["n[1-65537]", "r[1-999]n[1-999]", "n[1-99999999999999999999]", "a[1-2],n[1-999999999]"])
def test_a_list_larger_than_any_cluster_is_refused_before_it_is_unfolded(folded: str) -> None:
    with pytest.raises(ValueError, match="more than 65,536 nodes"):
        parse_nodes(folded)


@each("folded", ["n[1-", "n[5-1]", "n[a-b]", ",", "n1,,n2", "@all", "n1 n2", "n1\n", "n!x", "n[]", "n*"])
def test_what_is_no_list_is_refused(folded: str) -> None:
    with pytest.raises(ValueError, match="expected a folded node list"):
        check_nodes(folded)
