"""The controller over a scheduler and agents that do what a test has them do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from contract.api_under_test import ApiUnderTest, FakeScheduler, report
from oakum_service.control.controller import Controller
from oakum_service.control.lease import LeaseHolder
from oakum_service.db.models import Fragment, FragmentState
from oakum_service.schedulers.port import OwnJob, Snapshot
from oakum_service.states import TrainerState
from oakum_worker.protocol import Phase
from waiting import DEADLINE_S, wait_until


@dataclass
class EndingScheduler(FakeScheduler):
    """Has every job end right after it was asked for the last time that shows them."""

    before_the_end: Callable[[], None] | None = None

    def snapshot(self) -> Snapshot:
        if self.before_the_end is not None:
            self.before_the_end()
            self.own_jobs, self.before_the_end = [], None
        return super().snapshot()


@pytest.fixture
def scheduler() -> EndingScheduler:
    return EndingScheduler(nodes=())


@pytest.fixture
def fragment(api: ApiUnderTest, scheduler: EndingScheduler) -> str:
    """The only one of a trainer that trains."""
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


@contextmanager
def controlled(api: ApiUnderTest) -> Iterator[None]:
    """A controller runs."""
    lease = LeaseHolder(api.sessions, alone=True)
    context = api.context
    api.settings.heartbeat_timeout_s = 3600.0
    controller = Controller(
        api.settings, api.sessions, context.readers, api.scheduler, context.configs, lease, api.inbox, api.outbox
    )
    thread = threading.Thread(target=lambda: asyncio.run(controller.run()))
    thread.start()
    try:
        yield
    finally:
        asyncio.run(controller.stop())
        thread.join(DEADLINE_S)


def has_begun(api: ApiUnderTest) -> bool:
    events = api.viewer.get("/v1/events/recent").json()["events"]
    return "service.started" in [event["kind"] for event in events]


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
        api.inbox.notify()
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
