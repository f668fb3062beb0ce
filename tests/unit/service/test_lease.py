"""The lease: one controller writes, and one that has been replaced writes nothing, whatever it believes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from oakum_service.clock import told_by
from oakum_service.db import event_log
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import TERM_S, LeaseHolder
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.installation import Lease
from oakum_service.errors import LeaseLost


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    steady_s = now


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with told_by(clock):
        yield clock


@pytest.fixture
def first(sessions: Sessions, clock: Clock) -> LeaseHolder:
    return LeaseHolder(sessions, alone=False)


@pytest.fixture
def second(sessions: Sessions, clock: Clock) -> LeaseHolder:
    return LeaseHolder(sessions, alone=False)


def write(holder: LeaseHolder, subject: str) -> None:
    with holder.writing() as session:
        event_log.record(session, "node.hole", subject, "")


def written(sessions: Sessions) -> list[str]:
    with sessions.begin() as session:
        return list(session.execute(select(EventRecord.subject).order_by(EventRecord.id)).scalars())


def test_the_holder_writes_and_nobody_else(sessions: Sessions, first: LeaseHolder, second: LeaseHolder) -> None:
    assert first.acquire()
    assert not second.acquire()
    write(first, "first")
    with pytest.raises(LeaseLost, match="no longer holds the controller's lease"):
        write(second, "second")
    assert written(sessions) == ["first"]


def test_nobody_writes_before_the_lease_was_ever_taken(sessions: Sessions, first: LeaseHolder) -> None:
    with pytest.raises(LeaseLost):
        write(first, "first")
    assert written(sessions) == []


def test_a_second_holder_takes_over_after_the_term_and_the_first_writes_nothing_more(
    sessions: Sessions, clock: Clock, first: LeaseHolder, second: LeaseHolder
) -> None:
    assert first.acquire()
    clock.at += TERM_S + 1.0
    assert second.acquire()
    with pytest.raises(LeaseLost):
        write(first, "first, which does not know it yet")
    write(second, "second")
    assert written(sessions) == ["second"]


def test_a_renewed_lease_is_not_taken(clock: Clock, first: LeaseHolder, second: LeaseHolder) -> None:
    for _ in range(5):
        assert first.acquire()
        clock.at += TERM_S - 1.0
        assert not second.acquire()


def test_a_holder_that_was_late_goes_on_if_nobody_took_its_place(
    sessions: Sessions, clock: Clock, first: LeaseHolder
) -> None:
    assert first.acquire()
    clock.at += 10 * TERM_S
    write(first, "late")
    assert first.acquire()
    assert written(sessions) == ["late"]


def test_what_the_holder_writes_renews_its_lease(clock: Clock, first: LeaseHolder, second: LeaseHolder) -> None:
    """A turn may take longer than the term."""
    assert first.acquire()
    for _ in range(5):
        clock.at += TERM_S - 1.0
        write(first, "in a long turn")
    clock.at += TERM_S - 1.0
    assert not second.acquire()


def test_one_that_was_replaced_waits_for_its_turn_and_comes_back_with_a_new_token(
    sessions: Sessions, clock: Clock, first: LeaseHolder, second: LeaseHolder
) -> None:
    assert first.acquire()
    clock.at += TERM_S + 1.0
    assert second.acquire()
    assert not first.acquire()
    write(second, "second")
    clock.at += TERM_S + 1.0
    assert first.acquire()
    with pytest.raises(LeaseLost):
        write(second, "second again")
    write(first, "first")
    assert written(sessions) == ["second", "first"]
    with sessions.begin() as session:
        assert session.get_one(Lease, 1).token == 3


def test_one_that_is_alone_does_not_wait_for_the_dead(
    sessions: Sessions, clock: Clock, first: LeaseHolder
) -> None:
    assert first.acquire()
    successor = LeaseHolder(sessions, alone=True)
    assert successor.acquire()
    with pytest.raises(LeaseLost):
        write(first, "the dead")
    write(successor, "successor")
    assert written(sessions) == ["successor"]


def test_a_lease_that_was_given_up_is_free_at_once(first: LeaseHolder, second: LeaseHolder) -> None:
    assert first.acquire()
    first.give_up()
    with pytest.raises(LeaseLost):
        write(first, "first")
    assert second.acquire()


def test_one_that_was_replaced_cannot_give_the_lease_up(
    clock: Clock, first: LeaseHolder, second: LeaseHolder
) -> None:
    assert first.acquire()
    clock.at += TERM_S + 1.0
    assert second.acquire()
    first.give_up()
    assert not first.acquire()
    write(second, "second")


def test_a_transaction_that_fails_writes_nothing(sessions: Sessions, first: LeaseHolder) -> None:
    assert first.acquire()

    def fail() -> None:
        with first.writing() as session:
            event_log.record(session, "node.hole", "half", "")
            session.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert written(sessions) == []
