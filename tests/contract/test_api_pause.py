"""A trainer's pause and its retry: what the routes answer, and what the controller makes of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from api_under_test import ApiUnderTest, problem_of
from oakum_service.api.auth import Role
from oakum_service.control.endings import end
from oakum_service.control.observe import Observation
from oakum_service.control.plan import pose, write_plan
from oakum_service.db.models.fragments import Fragment
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.crash import NewestCrash
from oakum_service.documents.node import Node
from oakum_service.documents.time_account import TimeAccount
from oakum_service.orders import pause
from oakum_service.schedulers.port import Snapshot
from oakum_service.states import NodeState, TimeUse, TrainerState
from oakum_solver.solve import solve
from oakum_worker.protocol import TrainingProgress


def shown(api: ApiUnderTest, ref: str = "digits") -> Mapping[str, Any]:
    document: Mapping[str, Any] = api.user.get(f"/v1/trainers/{ref}").json()
    return document


def kinds(api: ApiUnderTest) -> list[str]:
    return [event["kind"] for event in api.viewer.get("/v1/events/recent").json()["events"]]


def ended(api: ApiUnderTest, state: TrainerState, **columns: object) -> str:
    """A trainer that has ended in this state, as the controller ends trainers; returns its id."""
    trainer = str(api.submit()["id"])
    with api.sessions.begin() as session:
        row = session.get_one(Trainer, trainer)
        for name, value in columns.items():
            setattr(row, name, value)
        end(session, row, state, f"it {state}", time.time())
    return trainer


def test_a_pause_says_since_when_why_and_by_whom(api: ApiUnderTest) -> None:
    api.submit()
    view = api.user.put("/v1/trainers/digits/pause", json={"reason": "its data moves"}).json()
    assert view["status"] == "paused"
    assert "by ulla: its data moves. `oakum unpause digits` ends the pause." in view["reason"]
    again = api.user.put("/v1/trainers/digits/pause", json={}).json()
    assert (again["reason"], again["status_since"]) == (view["reason"], view["status_since"])
    assert api.user.delete("/v1/trainers/digits/pause").json()["status"] == "waiting"
    assert api.user.delete("/v1/trainers/digits/pause").json()["status"] == "waiting"
    assert (kinds(api).count("trainer.paused"), kinds(api).count("trainer.unpaused")) == (2, 1)


@pytest.mark.parametrize(("method", "path"), [("PUT", "pause"), ("DELETE", "pause"), ("POST", "retry")])
def test_only_its_user_and_administrators_pause_or_retry_a_trainer(
    api: ApiUnderTest, method: str, path: str
) -> None:
    ended(api, TrainerState.CANCELLED) if path == "retry" else api.submit()
    other = api.client(api.new_token("otto", Role.USER))
    body = {"json": {}} if method == "PUT" else {}
    path = f"/v1/trainers/digits/{path}"
    assert "another user's" in problem_of(other.request(method, path, **body), 403)["detail"]
    assert problem_of(api.viewer.request(method, path, **body), 403)
    assert api.admin.request(method, path, **body).status_code == 200


def test_an_ended_trainer_is_not_paused(api: ApiUnderTest) -> None:
    ended(api, TrainerState.FINISHED)
    assert "is finished" in problem_of(api.user.put("/v1/trainers/digits/pause", json={}), 409)["detail"]
    assert "is finished" in problem_of(api.user.delete("/v1/trainers/digits/pause"), 409)["detail"]


def test_fragments_of_a_paused_trainer_are_told_to_leave_and_no_others(api: ApiUnderTest) -> None:
    mine, other = str(api.submit()["id"]), str(api.submit(name="other")["id"])
    fragments = [api.add_fragment(mine), api.add_fragment(other, "n2")]
    before = revision(api, mine)
    api.user.put("/v1/trainers/digits/pause", json={})
    for _ in range(2):
        with api.sessions.begin() as session:
            pause.release_paused(session)
    with api.sessions.begin() as session:
        assert [session.get_one(Fragment, each).released for each in fragments] == [True, False]
    assert revision(api, mine) == before + 1


def revision(api: ApiUnderTest, trainer: str) -> int:
    with api.sessions.begin() as session:
        return session.get_one(Trainer, trainer).revision


def test_no_plan_grants_a_paused_trainer_nodes_even_if_it_was_paused_while_the_solver_worked(
    api: ApiUnderTest,
) -> None:
    ids = {name: str(api.submit(name=name)["id"]) for name in ("early", "late", "eager")}
    nodes = tuple(Node(f"n{number}", NodeState.HOLE, "10.0.0.1") for number in range(9))
    observed = Observation(1, Snapshot(time.time(), nodes, ()))
    api.user.put("/v1/trainers/early/pause", json={})
    with api.sessions.begin() as session:
        problem = pose(session, observed, api.settings, time.time())
    assert {trainer.name for trainer in problem.trainers} == {"late", "eager"}
    plan = solve(problem)
    api.user.put("/v1/trainers/late/pause", json={})
    with api.sessions.begin() as session:
        assert set(write_plan(session, plan, problem, observed, time.time()).allocations) == {ids["eager"]}


@pytest.mark.parametrize("state", [TrainerState.FAILED, TrainerState.CANCELLED])
def test_a_retried_trainer_waits_again_with_its_checkpoint_and_all_its_attempts(
    api: ApiUnderTest, state: TrainerState
) -> None:
    account = TimeAccount(began_at=100.0, since=100.0, use=TimeUse.TRAINING)
    crash = NewestCrash(at=5.0, step=7, what="OSError", error="x", most=3)
    trainer = ended(
        api, state, checkpoint_step=6, crashes=3, crash=crash, cancel_requested=True, account=account, generation=4
    )
    (api.settings.checkpoints_dir / trainer).mkdir(parents=True)
    view = api.user.post("/v1/trainers/digits/retry").json()
    assert (view["state"], view["status"], view["message"], view["ended_at"]) == ("waiting", "waiting", "", None)
    assert (view["checkpoint_step"], view["attempt"], view["id"]) == (6, None, trainer)
    with api.sessions.begin() as session:
        row = session.get_one(Trainer, trainer)
        assert (row.crashes, row.crash, row.cancel_requested) == (0, None, False)
        assert row.ended_through == row.generation == 5
        assert row.account is not None
        spent = row.account.spent_s(time.time())
        assert row.account.use is TimeUse.WAITING
        assert sum(spent.values()) == pytest.approx(time.time() - 100.0, abs=60.0)
    assert "from its checkpoint of step 6" in api.user.get("/v1/events/recent").json()["events"][-1]["message"]


@pytest.mark.parametrize(
    ("state", "said"), [(TrainerState.FINISHED, "more epochs"), (TrainerState.DIVERGED, "would again")]
)
def test_what_would_end_alike_again_is_not_retried(api: ApiUnderTest, state: TrainerState, said: str) -> None:
    ended(api, state)
    assert said in problem_of(api.user.post("/v1/trainers/digits/retry"), 409)["detail"]
    assert shown(api)["state"] == state


def test_a_live_trainer_is_not_retried(api: ApiUnderTest) -> None:
    api.submit()
    assert "is waiting" in problem_of(api.user.post("/v1/trainers/digits/retry"), 409)["detail"]


def test_a_retry_waits_for_the_last_fragments_to_leave(api: ApiUnderTest) -> None:
    trainer = ended(api, TrainerState.CANCELLED)
    api.add_fragment(trainer, "n7")
    assert "still leaving n7" in problem_of(api.user.post("/v1/trainers/digits/retry"), 409)["detail"]


def test_a_trainer_whose_checkpoints_are_gone_is_not_retried(api: ApiUnderTest) -> None:
    trainer = ended(api, TrainerState.FAILED, checkpoint_step=6)
    problem = problem_of(api.user.post("/v1/trainers/digits/retry"), 409)
    assert str(api.settings.checkpoints_dir / trainer) in problem["detail"]


def test_a_trainer_is_not_retried_beside_a_live_one_of_its_name(api: ApiUnderTest) -> None:
    trainer = ended(api, TrainerState.FAILED)
    api.submit()
    assert "is waiting" in problem_of(api.user.post(f"/v1/trainers/{trainer}/retry"), 409)["detail"]


def paused_after(api: ApiUnderTest, epochs: int) -> str:
    """A paused trainer that has finished this many of its epochs; returns its id."""
    trainer = str(api.submit(epochs=10)["id"])
    progress = TrainingProgress(
        generation=1,
        nodes=1,
        step=epochs * 5,
        total_steps=50,
        epoch=epochs,
        samples=epochs * 40,
        total_samples=400,
    )
    with api.sessions.begin() as session:
        session.get_one(Trainer, trainer).progress = progress
    api.user.put("/v1/trainers/digits/pause", json={})
    return trainer


def test_the_epochs_of_a_paused_trainer_are_changed_and_the_change_is_kept(api: ApiUnderTest) -> None:
    trainer = paused_after(api, 3)
    view = api.user.patch("/v1/trainers/digits", json={"epochs": 25}).json()
    assert (view["spec"]["epochs"], view["total_steps"], view["total_samples"]) == (25, 125, 1000)
    with api.sessions.begin() as session:
        assert session.get_one(Trainer, trainer).spec.epochs == 25
    events = api.viewer.get("/v1/events/recent").json()["events"]
    told = [event["message"] for event in events if event["kind"] == "trainer.changed"]
    assert told == ["ulla changes epochs to 25"]
    (entry,) = api.admin.get("/v1/audit", params={"action": "trainer.changed"}).json()["entries"]
    assert (entry["details"]["before"], entry["details"]["after"]) == ({"epochs": 10}, {"epochs": 25})


def test_epochs_are_changed_only_where_training_begins_again(api: ApiUnderTest) -> None:
    def refused(epochs: int) -> str:
        return str(problem_of(api.user.patch("/v1/trainers/digits", json={"epochs": epochs}), 409)["detail"])

    trainer = paused_after(api, 3)
    assert "has finished 3 epochs: give at least 4" in refused(3)
    api.add_fragment(trainer)
    assert "trainer 'digits' has 1 fragment still leaving" in refused(25)
    api.user.delete("/v1/trainers/digits/pause")
    assert "`oakum pause digits`, change it, `oakum unpause digits`" in refused(25)
    assert shown(api)["spec"]["epochs"] == 10
    assert problem_of(api.user.patch("/v1/trainers/digits", json={"epochs": 0}), 422)
