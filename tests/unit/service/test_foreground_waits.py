"""How long foreground jobs waited, told from the signals that fragments on their nodes had."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from api_under_test import SPEC, report
from oakum_service.control.foreground import write_starts
from oakum_service.db.engine import Sessions
from oakum_service.db.models.cluster import ForegroundStart
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import JobStart


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
    ],
    ids=["still there", "gone", "not signalled", "signalled later", "long ago"],
)
def test_a_job_waited_from_the_first_signal_on_its_nodes(
    sessions: Sessions, signalled_at: float | None, ended_at: float | None, expected: float
) -> None:
    add_fragment(sessions, "n1", signalled_at, ended_at)
    add_fragment(sessions, "n9", 990.0)
    assert delays(sessions, JobStart("7", 1000.0, 2, None, ("n1", "n2"))) == {"7": pytest.approx(expected)}


def test_jobs_that_start_in_one_second_are_all_counted_whenever_they_are_seen(sessions: Sessions) -> None:
    first, second = (JobStart(job, 1000.0, 1, 0.25) for job in ("7", "8"))
    assert delays(sessions, first) == {"7": 0.25}
    assert delays(sessions, first, second) == {"7": 0.25, "8": 0.25}
