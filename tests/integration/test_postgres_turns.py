"""Who waits for whom on PostgreSQL: writers, readers, reports, and those that want the lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from api_under_test import ApiUnderTest, report
from oakum_service.db import event_log, lease
from oakum_service.db.engine import (
    Sessions,
    open_engine,
    open_readers,
    open_reporters,
    open_sessions,
)
from oakum_service.db.lease import TERM_S, LeaseHolder
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.errors import LeaseLost
from postgres_database import api as api
from postgres_database import engine as engine
from postgres_database import is_blocked
from postgres_database import postgres as postgres
from postgres_database import sessions as sessions
from postgres_database import url as url
from postgres_server import ON_POSTGRES
from waiting import wait_until

pytestmark = [*ON_POSTGRES]


class TestTurns:
    """Transactions that write take turns; those that read wait for nobody."""

    @pytest.mark.parametrize("in_another_process", [False, True])
    def test_a_writer_waits_for_the_one_before_it(
        self, engine: Engine, sessions: Sessions, url: str, in_another_process: bool
    ) -> None:
        """So an event with a lower id never becomes visible after one with a higher id."""
        others = open_engine(url) if in_another_process else engine

        def second() -> None:
            with open_sessions(others).begin() as session:
                event_log.record(session, "node.hole", "second", "")

        with ThreadPoolExecutor(1) as thread:
            with sessions.begin() as session:
                event_log.record(session, "node.hole", "first", "")
                session.flush()
                writing = thread.submit(second)
                wait_until("the second waits or has written", lambda: writing.done() or is_blocked(engine))
                assert not writing.done()
            writing.result(30.0)
        with open_readers(engine).begin() as session:
            subjects = session.execute(select(EventRecord.subject).order_by(EventRecord.id)).scalars().all()
        assert subjects == ["first", "second"]
        if in_another_process:
            others.dispose()

    def test_a_writer_that_is_stopped_is_waited_for_no_longer_than_a_pause_may_take(
        self, engine: Engine, url: str
    ) -> None:
        stopped = open_engine(url)
        patient = open_engine(f"{url}&options=-c%20lock_timeout%3D30s")
        with stopped.execution_options(longest_pause_s=0.5).connect() as connection:
            connection.execute(text("SELECT 1"))  # in its turn, in which it says no more
            with open_sessions(patient).begin() as session:
                event_log.record(session, "node.hole", "second", "")
            with pytest.raises(DBAPIError):
                connection.execute(text("SELECT 1"))
        stopped.dispose()
        patient.dispose()

    def test_only_a_writers_pauses_are_limited(self, engine: Engine, sessions: Sessions) -> None:
        limit = text("SHOW idle_in_transaction_session_timeout")
        for writers in (sessions, open_reporters(engine)):  # each has rows that others wait for
            with writers.begin() as session:
                assert session.execute(limit).scalar_one() == "7s"
            with open_readers(engine).begin() as session:  # on the writer's connection, which is back in the pool
                assert session.execute(limit).scalar_one() == "0"

    def test_a_reader_waits_for_nobody(self, engine: Engine, sessions: Sessions) -> None:
        with sessions.begin() as session:
            event_log.record(session, "node.hole", "first", "")
            session.flush()
            with open_readers(engine).begin() as reader:
                assert reader.execute(select(EventRecord)).all() == []


class TestReports:
    """Agents report once a second, and there may be thousands: reports must not queue behind other writers."""

    def test_a_report_gets_through_while_another_writes(
        self, api: ApiUnderTest, engine: Engine, sessions: Sessions
    ) -> None:
        """Also where the other has changed the fragment's own row, and whether or not it is the first report."""
        trainer = api.submit()["id"]
        fragment = api.add_fragment(trainer)
        agent = api.fragment_client(fragment)
        with ThreadPoolExecutor(2) as threads:
            with sessions.begin() as session:
                session.get_one(Fragment, fragment).ready_at = 5.0
                session.get_one(Trainer, trainer).revision += 1
                event_log.record(session, "node.hole", "first", "")
                session.flush()
                submitting = threads.submit(api.submit, name="second")
                wait_until("the other writer waits or is done", lambda: submitting.done() or is_blocked(engine))
                assert not submitting.done()
                for sequence in (1, 2):
                    path = f"/v1/fragments/{fragment}/report"
                    sending = threads.submit(agent.post, path, json=report(sequence))
                    assert sending.result(10.0).status_code == 204
                assert not submitting.done()
                seen = session.execute(select(Report.sequence)).scalars().all()
                assert seen == [2], "and the one that writes reads what has been reported meanwhile"
            submitting.result(30.0)

    @pytest.mark.parametrize("known", [False, True])
    def test_two_reports_of_one_agent_at_the_same_moment_leave_the_newer(
        self, api: ApiUnderTest, engine: Engine, known: bool
    ) -> None:
        """Both are its first ones, or neither is."""
        fragment = api.add_fragment(api.submit()["id"])
        agent, path = api.fragment_client(fragment), f"/v1/fragments/{fragment}/report"
        if known:
            assert agent.post(path, json=report(1)).status_code == 204
        with ThreadPoolExecutor(1) as thread:
            with open_reporters(engine).begin() as session:
                newer = Report(fragment_id=fragment, sequence=9, received_at=5.0, body=report(9))
                session.merge(newer)
                session.flush()
                sending = thread.submit(agent.post, path, json=report(8))
                wait_until("the older waits or is written", lambda: sending.done() or is_blocked(engine))
            assert sending.result(30.0).status_code == 204
        kept = api.stored_report(fragment)
        assert kept is not None
        assert kept.sequence == 9

    def test_one_agents_report_does_not_wait_for_anothers(self, api: ApiUnderTest, engine: Engine) -> None:
        trainer = api.submit()["id"]
        first, second = (api.add_fragment(trainer, node) for node in ("n1", "n2"))
        with open_reporters(engine).begin() as session:
            session.add(Report(fragment_id=first, sequence=1, received_at=0.0, body=report(1)))
            session.flush()
            with ThreadPoolExecutor(1) as thread:
                path = f"/v1/fragments/{second}/report"
                sending = thread.submit(api.fragment_client(second).post, path, json=report(1))
                assert sending.result(10.0).status_code == 204


class TestLease:
    @pytest.fixture
    def later(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        """Lets a term pass."""
        real, shift_s = lease.database_time, [0.0]
        monkeypatch.setattr(lease, "database_time", lambda session: real(session) + shift_s[0])
        return lambda: shift_s.__setitem__(0, shift_s[0] + TERM_S + 1.0)

    def test_one_of_two_that_come_at_the_same_moment_gets_it(self, sessions: Sessions) -> None:
        """Also the first time, when there is no row to lock."""
        together = threading.Barrier(4)

        def take(holder: LeaseHolder) -> bool:
            together.wait(20.0)
            return holder.acquire()

        holders = [LeaseHolder(sessions, alone=False) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            taken = list(threads.map(take, holders))
        assert sorted(taken) == [False, False, False, True]

    def test_one_that_was_replaced_writes_nothing(self, sessions: Sessions, later: Callable[[], None]) -> None:
        first, second = (LeaseHolder(sessions, alone=False) for _ in range(2))
        assert first.acquire()
        assert not second.acquire()
        later()
        assert second.acquire()
        with pytest.raises(LeaseLost), first.writing() as session:
            event_log.record(session, "node.hole", "first", "")
        assert (first.is_held, second.is_held) == (False, True)
        with second.writing() as session:
            event_log.record(session, "node.hole", "second", "")
        with sessions.begin() as session:
            assert session.execute(select(EventRecord.subject)).scalars().all() == ["second"]

    def test_nobody_takes_over_in_the_middle_of_a_write(
        self, engine: Engine, sessions: Sessions, later: Callable[[], None]
    ) -> None:
        first, second = (LeaseHolder(sessions, alone=False) for _ in range(2))
        assert first.acquire()
        with ThreadPoolExecutor(1) as thread:
            with first.writing() as session:
                later()
                taking = thread.submit(second.acquire)
                wait_until("the second waits or has it", lambda: taking.done() or is_blocked(engine))
                assert not taking.done()
                event_log.record(session, "node.hole", "first", "")
            assert taking.result(30.0)
        with pytest.raises(LeaseLost), first.writing():
            pass
        with sessions.begin() as session:
            assert session.execute(select(EventRecord.subject)).scalars().all() == ["first"]

    def test_one_that_is_frozen_within_a_transaction_is_replaced_within_ten_seconds(
        self, engine: Engine, sessions: Sessions, url: str
    ) -> None:
        """And writes nothing when it thaws: neither what it had begun nor anything new."""
        frozen = open_engine(url)
        first, second = LeaseHolder(open_sessions(frozen), alone=False), LeaseHolder(sessions, alone=False)
        assert first.acquire()
        began_s = time.monotonic()

        def write_slowly() -> None:
            with first.writing() as session:
                event_log.record(session, "node.hole", "first", "")
                session.flush()
                wait_until("the other has taken over", second.acquire)
                event_log.record(session, "node.hole", "first", "")

        with pytest.raises(DBAPIError):
            write_slowly()
        took_s = time.monotonic() - began_s
        assert took_s < 10.0
        with pytest.raises(LeaseLost), first.writing():
            pass
        assert not first.acquire()
        with sessions.begin() as session:
            assert session.execute(select(EventRecord.subject)).scalars().all() == []
        frozen.dispose()
