"""A write that carries an Idempotency-Key is carried out once; a live trainer's name is its own."""

from __future__ import annotations

from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, problem_of
from oakum_service.api.auth import Role
from oakum_service.db.models.callers import IdempotencyRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.states import TrainerState
from postgres_database import on_both_databases

KEY = {"Idempotency-Key": "a1"}
DAY_S = 24 * 3600.0


def test_the_same_request_with_the_same_key_is_answered_again_and_not_repeated(api: ApiUnderTest) -> None:
    first = api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    again = api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert api.trainer_names() == ["digits"]


def test_the_first_answer_comes_back_whatever_has_happened_since(api: ApiUnderTest) -> None:
    first = api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    api.end(first.json()["id"])
    assert api.user.post("/v1/trainers", json=SPEC, headers=KEY).content == first.content
    assert api.trainer_names() == ["digits"]


def test_the_order_of_fields_and_the_defaults_do_not_make_another_request(api: ApiUnderTest) -> None:
    first = api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    same: dict[str, Any] = dict(reversed(SPEC.items())) | {"weight": 1}
    assert api.user.post("/v1/trainers", json=same, headers=KEY).content == first.content


@pytest.mark.parametrize("change", [{"name": "other"}, {"epochs": 3}, {"arguments": {"lr": 0.1}}])
def test_another_request_with_the_same_key_is_a_conflict(api: ApiUnderTest, change: dict[str, Any]) -> None:
    api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    problem = problem_of(api.user.post("/v1/trainers", json=SPEC | change, headers=KEY), 409)
    assert problem["detail"] == "the Idempotency-Key 'a1' was used for another request: choose a new one"
    assert api.trainer_names() == ["digits"]


def test_a_key_is_used_up_for_every_kind_of_request(api: ApiUnderTest) -> None:
    api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    problem_of(api.user.post("/v1/trainers/digits/cancel", headers=KEY), 409)
    problem_of(api.user.patch("/v1/trainers/digits", json={"weight": 2.0}, headers=KEY), 409)


def test_keys_of_two_principals_do_not_meet(api: ApiUnderTest) -> None:
    other = api.client(api.new_token("otto", Role.USER))
    api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    theirs = other.post("/v1/trainers", json=SPEC | {"name": "theirs"}, headers=KEY)
    assert theirs.status_code == 201
    assert "Idempotency-Replayed" not in theirs.headers
    assert api.trainer_names() == ["digits", "theirs"]


def test_a_request_that_was_refused_does_not_use_its_key_up(api: ApiUnderTest) -> None:
    trainer = api.submit()["id"]
    problem_of(api.user.post("/v1/trainers", json=SPEC, headers=KEY), 409)
    problem_of(api.user.post("/v1/trainers", json=SPEC | {"epochs": 0}, headers=KEY), 422)
    api.end(trainer)
    assert api.user.post("/v1/trainers", json=SPEC, headers=KEY).status_code == 201


@on_both_databases
def test_requests_of_one_key_at_the_same_moment_make_one_trainer(api: ApiUnderTest) -> None:
    responses = api.submit_at_once(6, key="a1")
    assert {(response.status_code, response.content) for response in responses} == {(201, responses[0].content)}
    replayed = [response for response in responses if "Idempotency-Replayed" in response.headers]
    assert len(replayed) == 5
    assert api.trainer_names() == ["digits"]


@on_both_databases
def test_requests_without_a_key_at_the_same_moment_do_not_share_a_name(api: ApiUnderTest) -> None:
    responses = api.submit_at_once(6, key=None)
    assert sorted(response.status_code for response in responses) == [201, 409, 409, 409, 409, 409]
    assert api.trainer_names() == ["digits"]


def test_a_change_is_made_once(api: ApiUnderTest) -> None:
    api.submit()
    first = api.user.patch("/v1/trainers/digits", json={"weight": 2.0}, headers=KEY)
    api.user.patch("/v1/trainers/digits", json={"weight": 3.0})
    again = api.user.patch("/v1/trainers/digits", json={"weight": 2.0}, headers=KEY)
    assert again.content == first.content
    assert api.viewer.get("/v1/trainers/digits").json()["spec"]["weight"] == 3.0


def test_a_repeated_cancel_does_not_meet_the_next_trainer_of_that_name(api: ApiUnderTest) -> None:
    first = api.submit()["id"]
    cancelled = api.user.post("/v1/trainers/digits/cancel", headers=KEY)
    api.end(first, TrainerState.CANCELLED)
    api.submit()
    again = api.user.post("/v1/trainers/digits/cancel", headers=KEY)
    assert again.json() == cancelled.json()
    with api.sessions.begin() as session:
        wanted = [row.id for row in session.query(Trainer).where(Trainer.cancel_requested.is_(True))]
    assert wanted == [first]


@on_both_databases
def test_a_key_is_forgotten_after_a_day(api: ApiUnderTest) -> None:
    trainer = api.user.post("/v1/trainers", json=SPEC, headers=KEY).json()["id"]
    api.end(trainer)
    with api.sessions.begin() as session:
        for row in session.query(IdempotencyRecord):
            row.at -= DAY_S + 60.0
    new = api.user.post("/v1/trainers", json=SPEC, headers=KEY)
    assert new.status_code == 201
    assert new.json()["id"] != trainer


def test_a_key_of_unreasonable_length_is_refused(api: ApiUnderTest) -> None:
    assert api.user.post("/v1/trainers", json=SPEC, headers={"Idempotency-Key": "k" * 255}).status_code == 201
    response = api.user.post("/v1/trainers", json=SPEC, headers={"Idempotency-Key": "k" * 256})
    assert problem_of(response, 422)["errors"] == [
        "header.Idempotency-Key: String should have at most 255 characters"
    ]


@pytest.mark.parametrize("state", [state for state in TrainerState if not state.ended])
def test_the_name_of_a_live_trainer_is_taken(api: ApiUnderTest, state: TrainerState) -> None:
    api.change_row(api.submit()["id"], state=state)
    detail = problem_of(api.user.post("/v1/trainers", json=SPEC), 409)["detail"]
    assert detail.startswith(f"a trainer named 'digits' is {state}: ")


@pytest.mark.parametrize("state", [state for state in TrainerState if state.ended])
def test_the_name_of_an_ended_trainer_is_free(api: ApiUnderTest, state: TrainerState) -> None:
    api.end(api.submit()["id"], state)
    assert api.user.post("/v1/trainers", json=SPEC).status_code == 201
    assert api.trainer_names() == ["digits", "digits"]
