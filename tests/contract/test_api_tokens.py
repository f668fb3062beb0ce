"""Tokens that expire, replace each other and are revoked, through the API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.api.auth import Role
from oakum_service.control.retention import HISTORY_S, forget
from oakum_service.db.models.callers import ApiToken
from oakum_service.identity import tokens
from waiting import wait_until


def rows(api: ApiUnderTest, client: Any = None) -> list[dict[str, Any]]:
    """The tokens that a client is told of, by default an administrator's."""
    listed: list[dict[str, Any]] = (client or api.admin).get("/v1/tokens").json()["tokens"]
    return listed


def expire(api: ApiUnderTest, token: str, seconds_ago: float) -> None:
    with api.sessions.begin() as session:
        session.get_one(ApiToken, tokens.digest(token)).expires_at = time.time() - seconds_ago


def test_an_administrator_makes_a_token_that_is_told_once(api: ApiUnderTest) -> None:
    asked = {"name": "alice", "role": "user", "label": "laptop", "expires_in_s": 3600}
    answer = api.admin.post("/v1/tokens", json=asked)
    assert answer.status_code == 201
    made = answer.json()
    assert made["expires_at"] == pytest.approx(made["created_at"] + 3600)
    client = api.client(made["token"])
    assert client.post(
        "/v1/trainers/check", json={"name": "x", "entrypoint": "a:b", "global_batch": 8, "epochs": 1}
    )
    assert made["token"] not in api.admin.get("/v1/tokens").text
    [listed] = [row for row in rows(api) if row["name"] == "alice"]
    assert (listed["id"], listed["label"], listed["role"]) == (made["id"], "laptop", "user")
    events = api.admin.get("/v1/events/recent").json()["events"]
    [event] = [event for event in events if event["kind"] == "token.created"]
    assert (event["subject"], event["message"]) == ("alice", "anna makes a token of the role user for laptop")


def test_whoever_asks_sees_which_token_the_request_came_with_and_which_are_sessions(api: ApiUnderTest) -> None:
    token = api.new_token("ulla", Role.USER)
    mine = api.client(token)
    assert [row["is_session"] for row in rows(api, mine)] == [False, False]
    assert sorted(row["is_own"] for row in rows(api, mine)) == [False, True]
    begun = api.client(None).post("/v1/session", json={"token": token}, headers={"X-Oakum-Dashboard": "1"})
    assert begun.is_success
    assert sorted(row["is_session"] for row in rows(api, mine)) == [False, False, True]


@each(
    "changes",
    [
        {"name": ""},
        {"name": "  "},
        {"name": "a\nb"},
        {"role": "root"},
        {"expires_in_s": 0},
        {"expires_in_s": -5},
        {"label": "a\tb"},
        {"colour": "red"},
    ],
)
def test_a_token_that_cannot_be_is_not_made(api: ApiUnderTest, changes: dict[str, Any]) -> None:
    before = rows(api)
    problem_of(api.admin.post("/v1/tokens", json={"name": "alice"} | changes), 422)
    assert len(rows(api)) == len(before)


def test_an_expired_token_opens_nothing_and_says_so(api: ApiUnderTest) -> None:
    token = api.new_token("bob", Role.USER)
    client = api.client(token)
    expire(api, token, -60)
    assert client.get("/v1/trainers").status_code == 200
    expire(api, token, 1)
    detail = problem_of(client.get("/v1/trainers"), 401)["detail"]
    assert detail.startswith("the token expired at 2")
    assert "oakum token create" in detail


def test_a_token_is_replaced_without_a_gap(api: ApiUnderTest) -> None:
    old = api.admin.post("/v1/tokens", json={"name": "ci", "label": "nightly", "expires_in_s": 900}).json()
    mine = api.client(old["token"])
    new = mine.post(f"/v1/tokens/{old['id']}/rotate", json={"overlap_s": 60}).json()
    assert (new["name"], new["role"], new["label"]) == ("ci", "user", "nightly")
    assert new["expires_at"] - new["created_at"] == pytest.approx(900)
    assert {mine.get("/v1/trainers").status_code, api.client(new["token"]).get("/v1/trainers").status_code} == {
        200
    }
    left_s = {row["id"]: row["expires_at"] - time.time() for row in rows(api, mine)}
    assert left_s[old["id"]] == pytest.approx(60, abs=30)
    expire(api, old["token"], 0)
    problem_of(mine.get("/v1/trainers"), 401)
    assert api.client(new["token"]).get("/v1/trainers").status_code == 200


def test_a_replaced_token_never_lives_longer_than_before(api: ApiUnderTest) -> None:
    old = api.admin.post("/v1/tokens", json={"name": "ci", "expires_in_s": 30}).json()
    api.admin.post(f"/v1/tokens/{old['id']}/rotate", json={"overlap_s": 3600})
    [row] = [row for row in rows(api) if row["id"] == old["id"]]
    assert row["expires_at"] == pytest.approx(old["expires_at"])


def test_users_see_replace_and_revoke_their_own_tokens_alone(api: ApiUnderTest) -> None:
    [own] = [row for row in rows(api) if row["name"] == "ulla"]
    [other] = [row for row in rows(api) if row["name"] == "anna"]
    assert [row["name"] for row in rows(api, api.user)] == ["ulla"]
    for path in (f"/v1/tokens/{other['id']}", "/v1/tokens/" + "0" * 12):
        problem_of(api.user.delete(path), 404)
        problem_of(api.user.post(f"{path}/rotate", json={}), 404)
    assert api.admin.get("/v1/trainers").status_code == 200
    assert api.user.delete(f"/v1/tokens/{own['id']}").status_code == 204
    problem_of(api.user.get("/v1/trainers"), 401)


def test_the_last_use_is_known_and_written_rarely(api: ApiUnderTest) -> None:
    token = api.new_token("cora", Role.VIEWER)
    client, began = api.client(token), time.time()

    def used_at() -> float | None:
        [row] = [row for row in rows(api) if row["name"] == "cora"]
        at: float | None = row["used_at"]
        return at

    assert used_at() is None

    def used() -> float | None:
        # Another token's use may be under way, and then a later request tells this one's.
        assert client.get("/v1/trainers").status_code == 200
        return used_at()

    first = wait_until("the use is known", used)
    assert first is not None
    assert first >= began
    for _ in range(5):
        assert client.get("/v1/trainers").status_code == 200
    assert used_at() == first


def test_tokens_that_expired_long_ago_are_forgotten(api: ApiUnderTest, tmp_path: Path) -> None:
    old, recent = api.new_token("old", Role.USER), api.new_token("recent", Role.USER)
    expire(api, old, HISTORY_S + 10)
    expire(api, recent, HISTORY_S - 3600)
    with api.sessions.begin() as session:
        forget(session, time.time())
    names = {row["name"] for row in rows(api)}
    assert "old" not in names
    assert {"recent", "anna", "ulla"} <= names


def test_a_token_that_has_expired_is_not_replaced(api: ApiUnderTest) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "ulla", "expires_in_s": 60}).json()
    expire(api, made["token"], 1)
    told = problem_of(api.admin.post(f"/v1/tokens/{made['id']}/rotate", json={}), 409)
    assert "has expired" in told["detail"]


@each("name", ["bell\x07", "\u202elived", "zero\u200bwidth", "line\nbreak"])
def test_a_holder_whose_name_cannot_be_seen_as_it_is_gets_no_token(api: ApiUnderTest, name: str) -> None:
    assert problem_of(api.admin.post("/v1/tokens", json={"name": name}), 422)["errors"][0].startswith("name: ")
    assert problem_of(api.admin.post("/v1/tokens", json={"name": "ulla", "label": name}), 422)
