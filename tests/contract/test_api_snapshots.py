"""POST /v1/cluster/snapshots: who may tell the cluster's state, to whom, and what is no state."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api_under_test import ApiUnderTest, FakeScheduler, problem_of
from oakum_service.api import body_limit
from oakum_service.api.auth import Role
from oakum_service.errors import SchedulerError
from oakum_service.schedulers.port import AGE_HEADER, RequestTime
from oakum_service.schedulers.slurm.reading.pushed_source import decode_state, encode_state
from oakum_service.schedulers.slurm.reading.state import SlurmJob, SlurmNode, SlurmState

PATH = "/v1/cluster/snapshots"
NODES = tuple(SlurmNode(f"n{number}", "", ("IDLE",), ("main",)) for number in range(3))
STATE = SlurmState(1000.0, "22.05.8", NODES, ())


@dataclass
class ToldScheduler(FakeScheduler):
    """A scheduler that records the states that the API passes to it, or refuses them."""

    told: list[SlurmState] = field(default_factory=list)
    refuses: bool = False

    def on_state(self, body: bytes, arrival: RequestTime) -> float:
        if self.refuses:
            raise SchedulerError("the state is read from here")
        self.told.append(decode_state(body, arrival))
        return self.told[-1].taken_at


@pytest.fixture
def scheduler() -> ToldScheduler:
    return ToldScheduler()


def client_of(api: ApiUnderTest, role: Role) -> TestClient:
    """The client with a token of that role."""
    return api.client(api.new_token(f"some-{role.name.lower()}", role))


@pytest.mark.parametrize("role", [Role.HOOK, Role.ADMIN])
def test_collectors_and_admins_may_tell_the_state(api: ApiUnderTest, scheduler: ToldScheduler, role: Role) -> None:
    before = time.time()
    answer = client_of(api, role).post(PATH, content=encode_state(STATE), headers={AGE_HEADER: "2.5"})
    assert (answer.status_code, answer.content) == (204, b"")
    (state,) = scheduler.told
    assert state.nodes == NODES
    assert before - 2.5 <= state.taken_at <= time.time() - 2.5


@pytest.mark.parametrize("role", [Role.VIEWER, Role.USER])
def test_nobody_else_may(api: ApiUnderTest, scheduler: ToldScheduler, role: Role) -> None:
    answer = client_of(api, role).post(PATH, content=encode_state(STATE))
    problem_of(answer, 403)
    assert scheduler.told == []


def test_without_a_token_nothing_of_it_is_read(api: ApiUnderTest, scheduler: ToldScheduler) -> None:
    answer = api.anonymous.post(PATH, content=b"x" * 5_000_000)
    problem_of(answer, 401)


def test_a_large_state_is_taken_whole(api: ApiUnderTest, scheduler: ToldScheduler) -> None:
    jobs = tuple(SlurmJob(number, "x" * 200, "ada", "main", ("PENDING",)) for number in range(20_000))
    body = encode_state(SlurmState(1000.0, "22.05.8", NODES, jobs))
    assert len(body) > body_limit.LARGEST_BODY_BYTES
    assert api.hook.post(PATH, content=body).status_code == 204
    assert len(scheduler.told[0].jobs) == 20_000


def test_one_that_is_larger_than_any_cluster_is_refused(
    api: ApiUnderTest, scheduler: ToldScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_limit, "LARGEST_STATE_BYTES", 100)
    answer = api.hook.post(PATH, content=encode_state(STATE))
    problem_of(answer, 413)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", encode_state(SlurmState(1.0, "", (), ()))])
def test_what_is_no_state_changes_nothing(api: ApiUnderTest, scheduler: ToldScheduler, body: bytes) -> None:
    answer = api.hook.post(PATH, content=body)
    assert "posted state" in problem_of(answer, 400)["detail"]
    assert scheduler.told == []


@pytest.mark.parametrize("age", ["-1", "soon"])
def test_an_age_that_is_none_is_refused(api: ApiUnderTest, scheduler: ToldScheduler, age: str) -> None:
    answer = api.hook.post(PATH, content=encode_state(STATE), headers={AGE_HEADER: age})
    problem_of(answer, 422)
    assert scheduler.told == []


@pytest.mark.parametrize("age", ["inf", "nan"])
def test_an_age_that_is_no_number_is_none(api: ApiUnderTest, scheduler: ToldScheduler, age: str) -> None:
    answer = api.hook.post(PATH, content=encode_state(STATE), headers={AGE_HEADER: age})
    assert answer.status_code in (204, 422)
    assert all(state.taken_at == 1000.0 for state in scheduler.told)


def test_a_service_that_reads_the_state_itself_says_so(api: ApiUnderTest, scheduler: ToldScheduler) -> None:
    scheduler.refuses = True
    answer = api.hook.post(PATH, content=encode_state(STATE))
    assert problem_of(answer, 409)["detail"] == "the state is read from here"


def test_a_service_on_another_scheduler_says_what_to_set(data_dir: Path) -> None:
    other = ApiUnderTest(data_dir, FakeScheduler())
    answer = other.hook.post(PATH, content=encode_state(STATE))
    assert "OAKUM_SLURM_STATE=push" in problem_of(answer, 409)["detail"]
    other.news_for_readers.close()
    other.engine.dispose()
