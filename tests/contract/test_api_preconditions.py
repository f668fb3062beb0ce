"""ETag and If-Match: nobody overwrites a change that they have not seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from api_under_test import ApiUnderTest, problem_of
from oakum_service.states import TrainerState
from oakum_worker.protocol import TrainingProgress

CHANGES: dict[str, tuple[str, str, dict[str, Any] | None]] = {
    "change": ("PATCH", "/v1/trainers/digits", {"max_nodes": 7}),
    "annotate": ("PATCH", "/v1/trainers/digits", {"add_tags": ["new"], "notes": "seen"}),
    "pause": ("PUT", "/v1/trainers/digits/pause", {"reason": "lunch"}),
    "unpause": ("DELETE", "/v1/trainers/digits/pause", None),
    "cancel": ("POST", "/v1/trainers/digits/cancel", None),
    "retry": ("POST", "/v1/trainers/digits/retry", None),
}


def etag(api: ApiUnderTest) -> str:
    return str(api.user.get("/v1/trainers/digits").headers["ETag"])


@pytest.fixture
def digits(api: ApiUnderTest, request: pytest.FixtureRequest) -> str:
    """The id of a trainer on which the change under test can be carried out."""
    trainer = str(api.submit(max_nodes=4)["id"])
    change = getattr(request, "param", "change")
    if change == "unpause":
        api.user.put("/v1/trainers/digits/pause", json={"reason": ""})
    if change == "retry":
        api.end(trainer, TrainerState.CANCELLED)
    return trainer


@pytest.mark.parametrize(("digits", "change"), [(name, name) for name in CHANGES], indirect=["digits"])
def test_a_change_of_what_the_caller_has_not_seen_is_refused(api: ApiUnderTest, digits: str, change: str) -> None:
    method, path, body = CHANGES[change]
    before = api.user.get("/v1/trainers/digits").json()
    seen = etag(api)
    for stale in ('"0123456789"', f"W/{seen}", "", '"a", "b"'):
        problem = problem_of(api.user.request(method, path, json=body, headers={"If-Match": stale}), 412)
        assert problem["detail"].startswith(f"trainer 'digits' has changed since: its ETag is {seen}")
    unchanged = api.user.get("/v1/trainers/digits").json()
    assert {name: unchanged[name] for name in ("spec", "state")} == {
        name: before[name] for name in ("spec", "state")
    }
    done = api.user.request(method, path, json=body, headers={"If-Match": f'"other", {seen}'})
    assert done.status_code == 200, done.text
    assert done.headers["ETag"] == etag(api) != seen


def test_of_two_changes_that_have_seen_the_same_the_second_is_refused(api: ApiUnderTest, digits: str) -> None:
    seen = {"If-Match": etag(api)}
    assert api.user.patch("/v1/trainers/digits", json={"max_nodes": 7}, headers=seen).status_code == 200
    problem_of(api.admin.patch("/v1/trainers/digits", json={"max_nodes": 2}, headers=seen), 412)
    assert api.user.get("/v1/trainers/digits").json()["spec"]["max_nodes"] == 7
    for anyway in ({}, {"If-Match": "*"}):
        assert api.admin.patch("/v1/trainers/digits", json={"max_nodes": 2}, headers=anyway).status_code == 200


def test_training_leaves_the_etag_as_it_is(api: ApiUnderTest, digits: str) -> None:
    seen = etag(api)
    told = TrainingProgress(generation=1, nodes=1, step=5, total_steps=9, epoch=0, samples=480)
    api.change_row(digits, state=TrainerState.RUNNING, generation=1, progress=told)
    assert etag(api) == seen
    api.end(digits)
    assert etag(api) != seen


def test_a_change_that_is_sent_again_with_its_key_is_answered_as_before(api: ApiUnderTest, digits: str) -> None:
    headers = {"If-Match": etag(api), "Idempotency-Key": "k1"}
    first, again = (
        api.user.patch("/v1/trainers/digits", json={"max_nodes": 7}, headers=headers) for _ in range(2)
    )
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()


def test_who_may_not_read_a_trainer_gets_no_etag(api: ApiUnderTest, digits: str) -> None:
    api.change_row(digits, user_name="somebody-else")
    assert "ETag" not in api.user.get("/v1/trainers/digits").headers
    assert "ETag" in api.viewer.get("/v1/trainers/digits").headers


def test_the_openapi_document_refers_to_nothing_that_it_does_not_have(api: ApiUnderTest) -> None:
    document = api.app.openapi()

    def references(part: Any) -> list[str]:
        if isinstance(part, dict):
            found = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            return found + [each for value in part.values() for each in references(value)]
        return [each for value in part for each in references(value)] if isinstance(part, list) else []

    for reference in references(document):
        _, kind, section, name = reference.split("/")
        assert name in document[kind][section], reference
    changed = document["paths"]["/v1/trainers/{ref}"]["patch"]["responses"]
    assert {"200", "401", "403", "404", "409", "412", "422", "429", "503"} <= changed.keys()
    assert json.dumps(document).count("HTTPValidationError") == 0
