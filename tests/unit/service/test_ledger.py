"""The ledger: every node-second that was lent is charged once, to its user and month."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from api_under_test import SPEC, report
from oakum_service.control.foreground import write_starts
from oakum_service.control.fragment_ends import end_fragment
from oakum_service.control.ledger import LedgerSums, ledger
from oakum_service.control.retention import forget
from oakum_service.db.engine import Sessions
from oakum_service.db.models.fragments import Fragment, FragmentState, Report
from oakum_service.db.models.trainers import Trainer
from oakum_service.schedulers.port import JobStart
from oakum_worker.protocol import Phase
from scripted_trainer import ScriptedTrainer

DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
YEAR_S = 365 * 24 * 3600.0


def add_trainer(sessions: Sessions, name: str, user: str | None) -> None:
    with sessions.begin() as session:
        session.add(Trainer(id=name, name=name, spec=SPEC, state="running", submitted_at=0.0, user_name=user))


def launch(sessions: Sessions, trainer: str, node: str, at: float, training_at: float | None = None) -> None:
    with sessions.begin() as session:
        session.add(
            Fragment(
                id=f"on {node}",
                trainer_id=trainer,
                node=node,
                state=FragmentState.LIVE,
                launched_at=at,
                training_at=training_at,
            )
        )


def end(sessions: Sessions, node: str, at: float, cause: str = "") -> None:
    with sessions.begin() as session:
        fragment = session.get_one(Fragment, f"on {node}")
        fragment.cause = cause
        end_fragment(session, fragment, at)


def sums(
    sessions: Sessions, now: float, first: str = "0000-01", last: str = "9999-12", user: str | None = None
) -> dict[tuple[str, str], LedgerSums]:
    with sessions.begin() as session:
        return ledger(session, first, last, user, now)


def test_a_fragment_is_charged_to_the_months_that_it_ran_in(sessions: Sessions) -> None:
    add_trainer(sessions, "t1", "ada")
    launch(sessions, "t1", "n1", DECEMBER - 100, training_at=DECEMBER - 40)
    running = sums(sessions, DECEMBER + 50)
    assert running == {
        ("2026-12", "ada"): LedgerSums(lent_node_s=50.0),
        ("2026-11", "ada"): LedgerSums(lent_node_s=100.0, warm_up_node_s=60.0),
    }
    assert [*running] == [("2026-12", "ada"), ("2026-11", "ada")]
    end(sessions, "n1", DECEMBER + 50, "preempted")
    running["2026-12", "ada"].ends = {"preempted": 1}
    assert sums(sessions, DECEMBER + 1000) == running
    assert running["2026-11", "ada"].trained_node_s == 40.0


def test_only_the_months_and_the_user_asked_for_are_told(sessions: Sessions) -> None:
    for number, user in enumerate(("ada", "bob", None)):
        add_trainer(sessions, f"t{number}", user)
        launch(sessions, f"t{number}", f"n{number}", DECEMBER - 10, training_at=DECEMBER - 10)
    end(sessions, "n1", DECEMBER + 10)
    now = DECEMBER + 10
    assert [*sums(sessions, now)] == [
        (month, user) for month in ("2026-12", "2026-11") for user in ("", "ada", "bob")
    ]
    assert [*sums(sessions, now, "2026-12", "2026-12", "bob")] == [("2026-12", "bob")]
    assert [*sums(sessions, now, "2026-11", "2026-11", "ada")] == [("2026-11", "ada")]


def test_ends_are_counted_by_their_causes_in_the_month_of_the_end(sessions: Sessions) -> None:
    add_trainer(sessions, "t1", "ada")
    for number, cause in enumerate(("cancelled", "time limit", "cancelled", "preempted", "never started")):
        launch(sessions, "t1", f"n{number}", DECEMBER - 100)
        end(sessions, f"n{number}", DECEMBER + number, cause)
    found = sums(sessions, DECEMBER + 100)
    assert found["2026-12", "ada"].ends == {"cancelled": 2, "time limit": 1, "preempted": 1}
    assert found["2026-11", "ada"].ends == {}


def test_one_that_never_started_had_no_node(sessions: Sessions) -> None:
    add_trainer(sessions, "t1", "ada")
    launch(sessions, "t1", "n1", DECEMBER)
    end(sessions, "n1", DECEMBER + 30, cause="never started")
    assert sums(sessions, DECEMBER + 30) == {}


def test_the_sums_outlive_what_they_are_made_of(sessions: Sessions) -> None:
    add_trainer(sessions, "t1", "ada")
    launch(sessions, "t1", "n1", DECEMBER, training_at=DECEMBER)
    end(sessions, "n1", DECEMBER + 3600)
    with sessions.begin() as session:
        session.get_one(Trainer, "t1").state = "finished"
        session.get_one(Trainer, "t1").ended_at = DECEMBER + 3600
    for _ in range(3):
        with sessions.begin() as session:
            forget(session, DECEMBER + YEAR_S)
    with sessions.begin() as session:
        assert session.get(Fragment, "on n1") is session.get(Trainer, "t1") is None
    assert sums(sessions, DECEMBER + YEAR_S)["2026-12", "ada"].lent_node_s == 3600.0


def test_stalls_and_repeated_steps_are_charged_for_each_node(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = ScriptedTrainer(sessions, monkeypatch)
    trainer.launch("a")
    trainer.say("a", Phase.READY, startup_s=3.0)
    trainer.turn(after_s=4.0)
    trainer.switch("a", 1, 0, source="scratch")
    trainer.turn(after_s=2.0)
    trainer.progress("a", 1, 20)
    trainer.turn(after_s=10.0)
    trainer.launch("b")
    trainer.say("b", Phase.READY, startup_s=4.5)
    trainer.turn(after_s=5.0)
    trainer.switch("a", 2, 20, stall_s=1.0, step_s=0.25)
    trainer.turn(after_s=3.0)
    trainer.lose("a", "b")
    trainer.launch("c")
    trainer.say("c", Phase.READY)
    trainer.turn()
    trainer.switch("c", trainer.row.generation, 12, source="checkpoint")
    trainer.turn(after_s=1.0)
    told = trainer.view.time_spent
    assert told is not None
    charged = sums(sessions, trainer.now)["1970-01", "ulla"]
    assert charged.grow_node_s == pytest.approx(2 * 0.75)
    assert charged.repeated_node_s == pytest.approx(told.redone_s)
    assert charged.repeated_node_s > 0
    assert charged.lent_node_s == pytest.approx((24.0 + 8.0) + 1.0)
    assert charged.trained_node_s + charged.lost_node_s == pytest.approx(charged.lent_node_s)


@pytest.mark.parametrize("delay_s", [None, 6.0], ids=["computed", "told by the scheduler"])
def test_a_delay_is_charged_once_and_shared_by_the_users_of_the_job_s_nodes(
    sessions: Sessions, delay_s: float | None
) -> None:
    for number, user in enumerate(("ada", "bob", "eve")):
        add_trainer(sessions, f"t{number}", user)
        launch(sessions, f"t{number}", f"n{number}", DECEMBER, training_at=DECEMBER)
        with sessions.begin() as session:
            body = report(signalled_at=DECEMBER + 94.0 + number)
            session.add(Report(fragment_id=f"on n{number}", sequence=1, received_at=DECEMBER, body=body))
    start = JobStart("7", DECEMBER + 100.0, 2, delay_s, ("n0", "n1"))
    for _ in range(2):
        with sessions.begin() as session:
            write_starts(session, [start])
    delays = {user: charged.foreground_delay_s for (_, user), charged in sums(sessions, DECEMBER + 100).items()}
    assert delays == {"ada": pytest.approx(3.0), "bob": pytest.approx(3.0), "eve": 0.0}
