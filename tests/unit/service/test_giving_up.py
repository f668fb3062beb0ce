"""A member that does not answer in time is given up for good, and its loss is its own fault."""

from __future__ import annotations

import time

import pytest

from api_under_test import report
from oakum_service.control.membership import MembershipUpdater
from oakum_service.control.observe import end_fragments
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import TrainerState
from oakum_worker.protocol import FragmentReport, Phase
from oakum_worker.spec import TrainerSpec

SPEC = TrainerSpec(name="digits", entrypoint="a:b", global_batch=8, epochs=1)


@pytest.fixture
def keeper() -> MembershipUpdater:
    """The membership updater with deadlines of 0: every member that can be overdue is overdue."""
    return MembershipUpdater(regroup_timeout_s=-1.0, warm_up_timeout_s=3600.0)


@pytest.fixture(autouse=True)
def _two_ready_fragments(sessions: Sessions) -> None:
    with sessions.begin() as session:
        session.add(
            Trainer(
                id="t",
                name="digits",
                spec=SPEC,
                state=TrainerState.STARTING,
                submitted_at=0.0,
            )
        )
        session.flush()
        for name in ("a", "b"):
            session.add(
                Fragment(
                    id=name, trainer_id="t", node=f"n{name}", state=FragmentState.LIVE, launched_at=time.time()
                )
            )
        session.flush()
        for name in ("a", "b"):
            session.add(Report(fragment_id=name, sequence=-1, received_at=time.time(), body=report(0)))
    for name in ("a", "b"):
        tell(sessions, name, Phase.READY)


def tell(sessions: Sessions, fragment: str, phase: Phase, **fields: object) -> None:
    with sessions.begin() as session:
        row = session.get_one(Report, fragment)
        row.sequence += 1
        told = FragmentReport.model_validate(
            {"phase": phase, "sequence": row.sequence, "pid": 1, "host": "h", **fields}
        )
        row.body, row.received_at = told, time.time()


def turn(sessions: Sessions, keeper: MembershipUpdater) -> tuple[int, list[str], list[str]]:
    """Run one turn; returns the newest generation, its members, and the jobs to cancel."""
    with sessions.begin() as session:
        keeper.read_reports(session, time.time())
        to_cancel = keeper.turn(session, [], time.time())
        trainer = session.get_one(Trainer, "t")
        return trainer.generation, [*trainer.members], to_cancel


def end_job(sessions: Sessions, fragment: str) -> str:
    """Have the scheduler show the job no more; returns the recorded cause of the fragment's end."""
    with sessions.begin() as session:
        live = session.query(Fragment).where(Fragment.state != FragmentState.ENDED, Fragment.id != fragment)
        jobs = tuple(OwnJob("1", row.id, row.node) for row in live)
        end_fragments(session, Snapshot(time.time() + 1.0, (), jobs), 3600.0, now=time.time())
        return session.get_one(Fragment, fragment).cause


def test_one_that_did_not_answer_is_not_taken_back_while_its_job_ends(
    sessions: Sessions, keeper: MembershipUpdater
) -> None:
    assert turn(sessions, keeper) == (1, ["a", "b"], [])
    end_job(sessions, "a")
    assert turn(sessions, keeper) == (2, ["b"], ["a"])
    assert turn(sessions, keeper) == (3, [], ["b"])
    for _ in range(3):  # its last report still says that it is ready
        assert turn(sessions, keeper) == (3, [], [])
    tell(sessions, "b", Phase.LEAVING, signalled=True)
    assert turn(sessions, keeper) == (3, [], [])
    assert end_job(sessions, "b") == "lost"


def test_one_that_was_sent_away_in_a_hurry_is_not_called_lost(
    sessions: Sessions, keeper: MembershipUpdater
) -> None:
    assert turn(sessions, keeper) == (1, ["a", "b"], [])
    tell(sessions, "a", Phase.LEFT, signalled=True)
    assert turn(sessions, keeper) == (2, ["b"], ["a"])
    assert end_job(sessions, "a") == "preempted"
    with sessions.begin() as session:
        assert session.get_one(Trainer, "t").crashes == 0


def test_one_that_vanishes_while_no_service_runs_does_not_keep_the_others_waiting(
    sessions: Sessions, keeper: MembershipUpdater
) -> None:
    """`a` was on its way out when its node lost power; its job's end is all that the next controller sees."""
    assert turn(sessions, keeper) == (1, ["a", "b"], [])
    for name in ("a", "b"):
        tell(sessions, name, Phase.TRAINING, generation=1)
    with sessions.begin() as session:
        session.get_one(Fragment, "a").released = True
    assert turn(sessions, keeper) == (2, ["b"], [])
    end_job(sessions, "a")
    restarted = MembershipUpdater(regroup_timeout_s=3600.0, warm_up_timeout_s=3600.0)
    assert turn(sessions, restarted) == (2, ["b"], [])
    with sessions.begin() as session:
        trainer = session.get_one(Trainer, "t")
        assert trainer.ended_through == 1
        revision = trainer.revision
    for _ in range(2):
        assert turn(sessions, restarted) == (2, ["b"], [])
    with sessions.begin() as session:
        assert session.get_one(Trainer, "t").revision == revision


def test_one_that_has_said_goodbye_before_its_job_ended_cuts_nobody_off(
    sessions: Sessions, keeper: MembershipUpdater
) -> None:
    assert turn(sessions, keeper) == (1, ["a", "b"], [])
    for name in ("a", "b"):
        tell(sessions, name, Phase.TRAINING, generation=1)
    with sessions.begin() as session:
        session.get_one(Fragment, "a").released = True
    assert turn(sessions, keeper) == (2, ["b"], [])
    tell(sessions, "a", Phase.LEFT)
    end_job(sessions, "a")
    assert turn(sessions, keeper) == (2, ["b"], [])
    with sessions.begin() as session:
        assert session.get_one(Trainer, "t").ended_through == 0
