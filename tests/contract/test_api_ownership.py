"""Users change and read their own trainers; of others' trainers they see what concerns the nodes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete

from api_under_test import SPEC, ApiUnderTest, problem_of
from oakum_service.api.auth import Role
from oakum_service.db import event_log
from oakum_service.db.models.trainers import Trainer, TrainerTag
from oakum_service.states import TrainerState
from openapi_document import openapi_document

SECRET = "the-users-own-secret"
SPENT = {
    "total_steps": 60,
    "epoch": 0,
    "generation": 1,
    "nodes": 2,
    "step": 40,
    "samples": 3840,
    "loss": 0.125,
    "learning_rate": 0.0625,
    "metrics": {SECRET: 0.5},
}


@pytest.fixture
def other(api: ApiUnderTest) -> TestClient:
    """A client of `uwe`, another user than `ulla`."""
    return api.client(api.new_token("uwe", Role.USER))


@pytest.fixture
def trainer(api: ApiUnderTest) -> dict[str, Any]:
    """A trainer of the user ulla that has run, learned and failed; her secret is wherever her code may have put
    it."""
    code = f"tasks.{SECRET.replace('-', '_')}:task"
    document = api.submit(entrypoint=code, arguments={"key": SECRET}, tags=[SECRET], notes=SECRET)
    api.change_row(
        document["id"],
        state=TrainerState.FAILED,
        ended_at=time.time(),
        progress=SPENT,
        checkpoint_step=40,
        message=f"ValueError: {SECRET}",
        crash={"what": SECRET, "most": 3, "step": 41, "traceback": f"raise {SECRET}"},
    )
    with api.sessions.begin() as session:
        event_log.record(session, "trainer.warning", "digits", f"n1: {SECRET}")
    return document


def everything_that(client: TestClient, trainer: str) -> str:
    """All that the API tells this caller of trainers, as one text."""
    paths = [f"/v1/trainers/{trainer}{part}" for part in ("", "/explain", "/series", "/evaluations", "/logs")]
    paths += ["/v1/trainers", "/v1/events/recent", "/v1/notices", "/v1/plans", "/v1/timeline"]
    return "\n".join(client.get(path).text for path in paths)


@pytest.mark.parametrize("path", ["", "/check", "/dry-run"])
def test_users_code_does_not_run_in_the_services_account_unless_an_administrator_says_so(
    api: ApiUnderTest, path: str
) -> None:
    document = {"spec": SPEC} if path == "/dry-run" else SPEC
    api.settings.trust_users = False
    detail = problem_of(api.user.post(f"/v1/trainers{path}", json=document), 403)["detail"]
    assert "set OAKUM_TRUST_USERS=1 if all users are trusted" in detail
    assert api.admin.post(f"/v1/trainers{path}", json=document).status_code != 403


def test_a_retry_runs_code_too(api: ApiUnderTest) -> None:
    api.end(api.submit()["id"], TrainerState.FAILED)
    api.settings.trust_users = False
    problem_of(api.user.post("/v1/trainers/digits/retry"), 403)


def test_a_user_learns_nothing_of_what_anothers_code_is_says_and_has_learned(
    api: ApiUnderTest, other: TestClient, trainer: dict[str, Any]
) -> None:
    told = everything_that(other, trainer["id"])
    assert SECRET not in told
    assert SECRET.replace("-", "_") not in told
    assert "0.125" not in told
    assert "0.0625" not in told
    assert str(api.settings.checkpoints_dir) not in told
    for reader in (api.user, api.viewer, api.admin):
        assert SECRET in everything_that(reader, trainer["id"])


def test_a_user_sees_what_concerns_the_nodes_of_anothers_trainer(
    other: TestClient, trainer: dict[str, Any]
) -> None:
    view = other.get(f"/v1/trainers/{trainer['id']}").json()
    assert (view["name"], view["user"], view["is_private"]) == ("digits", "ulla", True)
    assert (view["state"], view["step"], view["spec"]["max_nodes"]) == ("failed", 41, trainer["spec"]["max_nodes"])
    assert view["reason"] == "failed: only its user and administrators see more"


def test_why_a_trainer_is_paused_is_for_its_user(api: ApiUnderTest, other: TestClient) -> None:
    paused = api.submit()["id"]
    assert api.user.put("/v1/trainers/digits/pause", json={"reason": SECRET}).status_code == 200
    for path in openapi_document()["paths"]:
        if path != "/v1/events":
            answer = other.get(path.replace("{ref}", paused).replace("{user}", "ulla"))
            assert SECRET not in answer.text, path
    view = other.get("/v1/trainers/digits").json()
    assert (view["status"], view["reason"]) == ("paused", "paused: only its user and administrators see more")
    for reader in (api.user, api.viewer, api.admin):
        assert SECRET in everything_that(reader, paused)


def test_events_of_a_trainer_stay_private_when_it_is_forgotten(
    api: ApiUnderTest, other: TestClient, trainer: dict[str, Any]
) -> None:
    with api.sessions.begin() as session:
        session.execute(delete(TrainerTag))
        session.delete(session.get_one(Trainer, trainer["id"]))
    assert SECRET not in other.get("/v1/events/recent").text
    assert SECRET in api.viewer.get("/v1/events/recent").text


@pytest.mark.parametrize("part", ["/series", "/node-use", "/evaluations", "/logs"])
def test_charts_and_logs_are_for_the_trainers_user(
    api: ApiUnderTest, other: TestClient, trainer: dict[str, Any], part: str
) -> None:
    path = f"/v1/trainers/{trainer['id']}{part}"
    assert problem_of(other.get(path), 403)["detail"] == (
        "trainer 'digits' is another user's: only its user and administrators see more"
    )
    assert [reader.get(path).status_code for reader in (api.user, api.viewer, api.admin)] == [200, 200, 200]


def test_only_its_user_and_administrators_change_or_cancel_a_trainer(api: ApiUnderTest, other: TestClient) -> None:
    api.submit()
    before = api.viewer.get("/v1/trainers/digits").json()
    for response in (
        other.patch("/v1/trainers/digits", json={"weight": 2.0}),
        other.post("/v1/trainers/digits/cancel"),
    ):
        assert problem_of(response, 403)["detail"] == (
            "trainer 'digits' is another user's: only its user and administrators change or cancel it"
        )
    assert api.viewer.get("/v1/trainers/digits").json() == before
    assert api.admin.patch("/v1/trainers/digits", json={"weight": 2.0}).status_code == 200
    assert api.user.post("/v1/trainers/digits/cancel").status_code == 200


def test_events_say_who_changed_and_cancelled_a_trainer(api: ApiUnderTest) -> None:
    api.submit()
    api.admin.patch("/v1/trainers/digits", json={"weight": 2.0})
    api.admin.post("/v1/trainers/digits/cancel")
    told = [event["message"] for event in api.user.get("/v1/events/recent").json()["events"]]
    assert told[-2:] == ["anna changes weight to 2.0", "anna cancels it"]


def test_a_name_that_another_user_had_before_keeps_that_users_events_private(
    api: ApiUnderTest, other: TestClient, trainer: dict[str, Any]
) -> None:
    assert other.post("/v1/trainers", json=SPEC).status_code == 201
    assert SECRET not in other.get("/v1/events/recent").text


def test_a_name_that_another_users_live_trainer_has_is_refused_without_saying_more(
    api: ApiUnderTest, other: TestClient
) -> None:
    api.submit()
    detail = problem_of(other.post("/v1/trainers", json=SPEC), 409)["detail"]
    assert detail == "another user's trainer has the name 'digits': choose another name"
