"""The controller with a scheduler and agents whose behaviour the test sets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from sqlalchemy.exc import OperationalError

from api_under_test import ApiUnderTest, FakeScheduler, report
from controlled import controlled
from oakum_service.control import controller
from oakum_service.db import lease
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.fragments import Fragment, FragmentState
from oakum_service.db.models.progress import ProgressSample
from oakum_service.documents.silence import Silence
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import TrainerState
from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import Phase
from waiting import DEADLINE_S, wait_until


@dataclass
class EndingScheduler(FakeScheduler):
    """A scheduler each of whose jobs ends right after the last snapshot that shows it."""

    before_the_end: Callable[[], None] | None = None

    def snapshot(self) -> Snapshot:
        if self.before_the_end is not None:
            self.before_the_end()
            self.own_jobs, self.before_the_end = [], None
        return super().snapshot()


@dataclass
class OvertakenScheduler(FakeScheduler):
    """A scheduler that starts its first job so slowly that a whole turn of the controller passes meanwhile, whose
    snapshot does not show the job."""

    is_starting: threading.Event = field(default_factory=threading.Event)
    is_missing: bool = False
    """Whether the newest snapshot lacks a job that was being started."""
    is_overtaken: threading.Event = field(default_factory=threading.Event)
    turn_again: Callable[[], None] = lambda: None
    """Has the controller take another turn right after this one."""

    def snapshot(self) -> Snapshot:
        self.turn_again()
        if self.is_missing:  # the turn of that snapshot is over
            self.is_overtaken.set()
        # Not for ever, because without a further turn no job may be started.
        self.is_missing = self.is_starting.wait(0.5)
        return super().snapshot()

    def submit(self, config: FragmentConfig) -> str:
        self.is_starting.set()
        assert self.is_overtaken.wait(DEADLINE_S)
        return super().submit(config)


@pytest.fixture
def scheduler(request: pytest.FixtureRequest) -> FakeScheduler:
    """The scheduler behind `api`. A test that parametrizes this fixture says which class it is of; for all others
    it is an `EndingScheduler` without nodes."""
    make: Callable[[], FakeScheduler] = getattr(request, "param", lambda: EndingScheduler(nodes=()))
    return make()


@pytest.fixture
def fragment(api: ApiUnderTest, scheduler: EndingScheduler) -> str:
    """The only fragment of a trainer that trains."""
    trainer = str(api.submit()["id"])
    fragment = api.add_fragment(trainer)
    api.change_row(trainer, state=TrainerState.RUNNING, generation=1, members=[fragment])
    scheduler.own_jobs = [OwnJob("1", fragment, "n1")]
    say(api, fragment, 1, Phase.TRAINING, step=5, checkpoint_step=5)
    return fragment


def say(api: ApiUnderTest, fragment: str, sequence: int, phase: Phase, **progress: object) -> None:
    told = {"generation": 1, "nodes": 1, "total_steps": 9, "epoch": 0, "samples": 480, **progress}
    document = report(sequence, phase, generation=1, progress=told)
    response = api.fragment_client(fragment).post(f"/v1/fragments/{fragment}/report", json=document)
    assert response.status_code == 204, response.text


def has_begun(api: ApiUnderTest) -> bool:
    events = api.viewer.get("/v1/events/recent").json()["events"]
    return "service.started" in [event["kind"] for event in events]


def is_live(api: ApiUnderTest, fragment: str) -> bool:
    with api.sessions.begin() as session:
        return session.get_one(Fragment, fragment).state == FragmentState.LIVE


def has_ended(api: ApiUnderTest, fragment: str) -> bool:
    """Whether the controller has seen the end of its job."""
    with api.sessions.begin() as session:
        return session.get_one(Fragment, fragment).state == FragmentState.ENDED


def shown(api: ApiUnderTest) -> tuple[str, int, int]:
    trainer = api.viewer.get("/v1/trainers").json()["trainers"][0]
    return trainer["state"], trainer["step"], trainer["checkpoint_step"]


def test_last_words_of_a_job_that_is_over_by_the_next_turn_are_heard(
    api: ApiUnderTest, scheduler: EndingScheduler, fragment: str
) -> None:
    with controlled(api):
        wait_until("it has begun", lambda: has_begun(api))
        scheduler.before_the_end = lambda: say(
            api, fragment, 2, Phase.FINISHED, step=9, checkpoint_step=9, final=True
        )
        api.news_for_controller.notify()
        wait_until("its end is seen", lambda: has_ended(api, fragment))
    assert shown(api) == (TrainerState.FINISHED, 9, 9)


def test_last_words_of_a_job_that_was_over_before_there_was_a_controller_are_heard(
    api: ApiUnderTest, scheduler: EndingScheduler, fragment: str
) -> None:
    say(api, fragment, 2, Phase.FINISHED, step=9, checkpoint_step=9, final=True)
    scheduler.own_jobs = []
    with controlled(api):
        wait_until("its end is seen", lambda: has_ended(api, fragment))
    assert shown(api) == (TrainerState.FINISHED, 9, 9)


@pytest.mark.parametrize("scheduler", [OvertakenScheduler], indirect=True)
def test_a_job_that_is_being_started_while_a_snapshot_is_taken_has_not_ended(
    api: ApiUnderTest, scheduler: OvertakenScheduler
) -> None:
    with controlled(api):
        wait_until("it has begun", lambda: has_begun(api))
        scheduler.turn_again = api.news_for_controller.notify
        api.submit(max_nodes=1)
        wait_until("its job is known", lambda: any(is_live(api, each.fragment) for each in scheduler.submitted))
    assert len(scheduler.submitted) == 1
    assert not scheduler.cancelled


def test_what_happened_before_anyone_listened_is_a_gap_in_the_charts(api: ApiUnderTest, fragment: str) -> None:
    trainer = api.viewer.get("/v1/trainers").json()["trainers"][0]["id"]
    api.change_row(trainer, started_at=1000.0)
    with api.sessions.begin() as session:
        session.add(ProgressSample(trainer_id=trainer, at=1010.0, step=4, nodes=1, loss=0.5, samples_per_s=90.0))
    with controlled(api):
        wait_until("it has begun", lambda: has_begun(api))
    before, gap, *_ = api.viewer.get(f"/v1/trainers/{trainer}/series").json()["points"]
    assert (before["nodes"], before["samples_per_s"]) == (1, 90.0)
    assert (gap["nodes"], gap["loss"], gap["samples_per_s"]) == (None, None, None)
    assert gap["at"] == pytest.approx(1010.0, abs=0.01)


def test_a_controller_that_loses_its_lease_while_the_scheduler_is_silent_waits_for_it(
    api: ApiUnderTest, scheduler: EndingScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm's first answer may take longer than the lease's term."""
    other = LeaseHolder(api.sessions, alone=True)
    scheduler.before_the_end = lambda: other.acquire() or None
    with controlled(api):
        wait_until("it says so", lambda: any("another controller has taken over" in m for m in caplog.messages))
        wait_until("it has begun", lambda: has_begun(api))
    # Another process cancels jobs now.
    assert scheduler.calls[:3] == ["start", "stop", "start"]


def test_a_first_answer_may_take_longer_than_the_leases_term(
    api: ApiUnderTest, scheduler: EndingScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two controllers that wait for a slow Slurm would replace each other for ever."""
    for module in (lease, controller):
        monkeypatch.setattr(module, "TERM_S", 2.0)
    other = LeaseHolder(api.sessions, alone=False)
    taken: list[bool] = []

    def answer_late() -> None:
        until_s = time.monotonic() + 5.0
        while time.monotonic() < until_s:
            taken.append(other.acquire())
            time.sleep(0.05)

    scheduler.before_the_end = answer_late
    with controlled(api, alone=False):
        wait_until("it has begun", lambda: has_begun(api))
    assert taken
    assert not any(taken)


def test_a_database_that_does_not_answer_for_a_while_ends_no_controller(
    api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that waits for the lease asks every second."""
    failures = iter([OperationalError("SELECT", None, Exception("gone")), OSError(28, "no space left")])
    acquire = LeaseHolder.acquire

    def failing(holder: LeaseHolder) -> bool:
        if (failure := next(failures, None)) is not None:
            raise failure
        return acquire(holder)

    monkeypatch.setattr(LeaseHolder, "acquire", failing)
    with controlled(api):
        wait_until("it has begun", lambda: has_begun(api))
    assert sum("cannot become the controller" in line for line in caplog.messages) == 2


def test_the_log_tells_of_a_hold_and_of_its_end(api: ApiUnderTest, caplog: pytest.LogCaptureFixture) -> None:
    said = api.admin.put("/v1/hold", json={"reason": "maintenance at 8"}).json()["sentence"]
    with controlled(api):
        wait_until("the hold is told", lambda: said in caplog.messages)
        api.admin.delete("/v1/hold")
        wait_until("its end is told", lambda: any("hold has ended" in line for line in caplog.messages))
    assert caplog.messages.count(said) == 1
    assert "maintenance at 8" in said


@pytest.mark.parametrize("scheduler", [FakeScheduler], indirect=True)
def test_nothing_is_planned_while_the_scheduler_is_silent_and_that_is_told_everywhere(
    api: ApiUnderTest, scheduler: FakeScheduler
) -> None:
    """Else a plan would take nodes from trainers that train, for launches that come to nothing."""
    told = "`squeue` had not ended after 20 s and was killed"
    scheduler.is_silent = Silence(time.time() - 12.0, told)
    with controlled(api):
        name = str(api.submit()["name"])
        wait_until("it is told", lambda: "scheduler.silent" in kinds(api))
        ready = api.anonymous.get("/readyz")
        assert ready.status_code == 503
        assert f"nothing is launched: {told}" in ready.text
        shown = api.viewer.get("/v1/cluster").json()["silence"]
        assert (shown["tried"], shown["for_s"] >= 12.0) == (told, True)
        assert "oakum_scheduler_silent_seconds 0.0" not in api.anonymous.get("/metrics").text
        reason = api.viewer.get(f"/v1/trainers/{name}").json()["reason"]
        assert "the scheduler has not answered since" in reason
        assert scheduler.submitted == []
        assert api.viewer.get("/v1/plans/current").status_code == 404
        scheduler.is_silent = None
        wait_until("it is launched", lambda: scheduler.submitted)
        assert api.viewer.get("/v1/cluster").json()["silence"] is None
        wait_until("its end is told", lambda: "scheduler.answers" in kinds(api))
        assert kinds(api).count("scheduler.silent") == kinds(api).count("scheduler.answers") == 1


def kinds(api: ApiUnderTest) -> list[str]:
    return [str(event["kind"]) for event in api.viewer.get("/v1/events/recent?limit=500").json()["events"]]
