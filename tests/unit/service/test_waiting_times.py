"""How long trainers have gone without nodes, as the controller writes it down."""

from __future__ import annotations

from oakum_service.control.new_trainers import add_trainer
from oakum_service.control.waiting_times import WaitingTimes, wait_of
from oakum_service.db.engine import Sessions
from oakum_service.db.models.events import EventRecord
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.trainers import Trainer
from oakum_service.states import TrainerState
from oakum_solver.guard import StarvationGuard, Wait
from oakum_worker.spec import TrainerSpec

GUARD = StarvationGuard(wait_s=60.0, quantum_s=20.0)
WAITING, TRAINING = False, True


class Watched:
    """A trainer under the eyes of one controller after the other."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.keeper = WaitingTimes(GUARD)
        self.now = 1000.0
        with sessions.begin() as session:
            spec = TrainerSpec(name="digits", entrypoint="a:b", global_batch=96, epochs=1)
            trainer = add_trainer(session, spec, "ulla")
            trainer.waiting_since = self.now
            self.id = trainer.id
        self.look()

    def look(self) -> None:
        with self.sessions.begin() as session:
            self.keeper.turn(session, self.now)

    def spend(self, seconds: float, has_nodes: bool) -> None:
        """Let time pass, in which the controller takes a turn every ten seconds."""
        with self.sessions.begin() as session:
            session.query(Fragment).delete()
            if has_nodes:
                fields = {"id": "f", "node": "n1", "state": FragmentState.LIVE, "launched_at": self.now}
                session.add(Fragment(trainer_id=self.id, **fields))
        for _ in range(round(seconds / 10)):
            self.now += 10.0
            self.look()

    def restart(self, away_s: float) -> None:
        self.now += away_s
        self.keeper = WaitingTimes(GUARD)
        self.look()

    @property
    def row(self) -> Trainer:
        with self.sessions.begin() as session:
            return session.get_one(Trainer, self.id)

    @property
    def wait(self) -> Wait:
        return wait_of(self.row)

    def events(self) -> list[str]:
        with self.sessions.begin() as session:
            return [row.message for row in session.query(EventRecord).filter_by(kind="trainer.guaranteed")]


def test_a_trainer_without_nodes_waits(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(50, WAITING)
    assert (watched.wait, watched.row.waiting_since, watched.events()) == (Wait(50.0), 1000.0, [])


def test_the_guarantee_is_written_down_once(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(100, WAITING)
    assert watched.events() == [
        "has waited 1 min for nodes: from now on it is granted its minimum where that fits, "
        "until it has had nodes for 20 s"
    ]
    watched.spend(10, TRAINING)
    watched.spend(30, WAITING)
    assert (watched.wait, len(watched.events())) == (Wait(130.0, 10.0), 1)


def test_a_quantum_with_nodes_ends_the_wait(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(60, WAITING)
    watched.spend(20, TRAINING)
    assert (watched.wait, watched.row.waiting_since) == (Wait(), None)


def test_the_present_wait_begins_when_the_last_node_goes(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(30, WAITING)
    watched.spend(10, TRAINING)
    watched.spend(20, WAITING)
    assert (watched.wait, watched.row.waiting_since) == (Wait(50.0, 10.0), 1050.0)


def test_a_restart_goes_on_from_what_was_written(sessions: Sessions) -> None:
    """The time in which nobody could grant anything counts as neither."""
    watched = Watched(sessions)
    watched.spend(30, WAITING)
    watched.restart(away_s=5000.0)
    watched.spend(10, WAITING)
    assert (watched.wait, watched.row.waiting_since) == (Wait(40.0), 1000.0)


def test_another_controllers_term_is_not_counted_twice(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(10, WAITING)
    watched.keeper.begin()
    watched.now += 1000.0
    watched.look()
    assert watched.wait == Wait(10.0)


def test_a_clock_that_is_set_back_counts_nothing(sessions: Sessions) -> None:
    watched = Watched(sessions)
    watched.spend(30, WAITING)
    watched.now -= 500.0
    watched.look()
    watched.spend(10, WAITING)
    assert watched.wait == Wait(40.0)


def test_many_turns_in_a_moment_count_as_one(sessions: Sessions) -> None:
    watched = Watched(sessions)
    for _ in range(100):
        watched.now += 0.25
        watched.look()
    assert watched.wait == Wait(25.0)


def test_who_has_ended_waits_no_more(sessions: Sessions) -> None:
    watched = Watched(sessions)
    with sessions.begin() as session:
        session.get_one(Trainer, watched.id).state = TrainerState.FINISHED
    watched.spend(100, WAITING)
    assert (watched.wait, watched.events()) == (Wait(), [])
