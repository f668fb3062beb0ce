"""How long foreground jobs waited, told from the signals that fragments on their nodes had."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from api_under_test import SPEC, report
from oakum_service.control.foreground import write_starts
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import ForegroundStart, NodeInterval
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.node import UNKNOWN_JOB
from oakum_service.schedulers.port import JobStart
from oakum_service.states import NodeState
from virtual_site import VirtualSite


def add_fragment(sessions: Sessions, node: str, signalled_at: float | None, ended_at: float | None = None) -> None:
    with sessions.begin() as session:
        if session.get(Trainer, "t1") is None:
            session.add(Trainer(id="t1", name="digits", spec=SPEC, state="running", submitted_at=0.0))
            session.flush()
        state = FragmentState.LIVE if ended_at is None else FragmentState.ENDED
        session.add(
            Fragment(id=f"on {node}", trainer_id="t1", node=node, state=state, launched_at=0.0, ended_at=ended_at)
        )
        session.flush()
        session.add(
            Report(fragment_id=f"on {node}", sequence=1, received_at=0.0, body=report(signalled_at=signalled_at))
        )


def delays(sessions: Sessions, *starts: JobStart) -> dict[str, float]:
    with sessions.begin() as session:
        write_starts(session, starts)
    with sessions.begin() as session:
        return {row.job: row.delay_s for row in session.execute(select(ForegroundStart)).scalars()}


@pytest.mark.parametrize(
    ("signalled_at", "ended_at", "expected"),
    [
        (998.5, None, 1.5),
        (998.5, 999.5, 1.5),
        (None, None, 0.0),
        (1001.0, None, 0.0),
        (100.0, 120.0, 0.0),
        (399.0, None, 0.0),
        (399.0, 999.5, 0.0),
    ],
    ids=[
        *("still there", "gone", "not signalled", "signalled later", "long ago"),
        *("signalled long ago and still there", "signalled long ago and gone"),
    ],
)
def test_a_job_waited_from_the_first_signal_on_its_nodes(
    sessions: Sessions, signalled_at: float | None, ended_at: float | None, expected: float
) -> None:
    add_fragment(sessions, "n1", signalled_at, ended_at)
    add_fragment(sessions, "n9", 990.0)
    assert delays(sessions, JobStart("7", 1000.0, 2, None, ("n1", "n2"))) == {"7": pytest.approx(expected)}


@pytest.mark.parametrize(
    ("taker", "taken_at", "expected"),
    [("6", 950.5, 0.0), ("6", 940.0, 50.0), ("7", 999.0, 50.0), (UNKNOWN_JOB, 950.5, 50.0)],
    ids=["after the signal", "before it", "the job itself", "perhaps itself"],
)
def test_a_fragment_that_had_to_leave_for_another_job_has_not_delayed_this_one(
    sessions: Sessions, taker: str, taken_at: float, expected: float
) -> None:
    """Where foreground jobs follow each other on a node, the last fragment there left for the first of them."""
    add_fragment(sessions, "n1", 950.0, 950.4)
    with sessions.begin() as session:
        taken = NodeInterval(node="n1", state=NodeState.FOREGROUND, job=taker, start_at=taken_at, end_at=999.9)
        session.add(taken)
    assert delays(sessions, JobStart("7", 1000.0, 1, None, ("n1",))) == {"7": pytest.approx(expected)}


def test_a_fragment_that_another_one_has_followed_has_not_delayed_the_job(sessions: Sessions) -> None:
    add_fragment(sessions, "n1", 950.0, 950.4)
    with sessions.begin() as session:
        follower = Fragment(id="f", trainer_id="t1", node="n1", state=FragmentState.LIVE, launched_at=960.0)
        session.add(follower)
        session.flush()
        session.add(Report(fragment_id="f", sequence=1, received_at=0.0, body=report(signalled_at=999.5)))
    assert delays(sessions, JobStart("7", 1000.0, 1, None, ("n1",))) == {"7": pytest.approx(0.5)}


def test_a_fragment_that_was_cancelled_has_delayed_no_job(sessions: Sessions) -> None:
    add_fragment(sessions, "n1", 950.0, 950.4)
    with sessions.begin() as session:
        session.get_one(Fragment, "on n1").cause = "cancelled"
    assert delays(sessions, JobStart("7", 1000.0, 1, None, ("n1",))) == {"7": 0.0}


@pytest.mark.parametrize("seen_last", [1000.0, 999.0], ids=["in the same second", "earlier"])
def test_a_start_is_counted_though_it_is_seen_after_another_one(sessions: Sessions, seen_last: float) -> None:
    """A job has its start time before its prologs, and runs when the slowest of them has ended."""
    first, last = JobStart("7", 1000.0, 1, 0.25), JobStart("8", seen_last, 1, 0.25)
    assert delays(sessions, first) == {"7": 0.25}
    assert delays(sessions, first, last) == {"7": 0.25, "8": 0.25}


def test_starts_without_a_controller_are_counted_and_those_before_the_first_one_are_not(
    sessions: Sessions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_000.5)
    site = VirtualSite(sessions, tmp_path, num_nodes=1, busy=0)
    monkeypatch.setattr("time.time", site.time)
    site.now = 1_010.0
    site.scheduler.starts = [JobStart(job, at, 1, 0.25) for job, at in (("1", 999.0), ("2", 1_000.0))]
    site.controller._begin()
    site.run(1)
    assert set(delays(sessions)) == {"2"}
    site.now = 2_000.0
    after = VirtualSite(sessions, tmp_path, num_nodes=1, busy=0)
    after.scheduler.starts = [*site.scheduler.starts, JobStart("3", 1_500.0, 1, 0.25)]
    after.controller._begin()
    after.run(1)
    assert set(delays(sessions)) == {"2", "3"}
