"""Signing in to the dashboard: a cookie in place of the token, which no page from elsewhere can use."""

from __future__ import annotations

import time
from typing import Any

import pytest

from api_under_test import SPEC, ApiUnderTest, problem_of
from oakum_service.api.auth import Role
from oakum_service.api.session import SESSION_S
from oakum_service.api.session_cookie import GUARD_HEADER
from oakum_service.db.models.callers import ApiToken
from oakum_service.identity import tokens

GUARD = {GUARD_HEADER: "1"}


def signed_in(api: ApiUnderTest, token: str) -> Any:
    """A client that has nothing but the cookie and the key that it was given."""
    client = api.client(None)
    answer = client.post("/v1/session", json={"token": token}, headers=GUARD)
    assert answer.status_code == 201, answer.text
    client.headers[GUARD_HEADER] = answer.json()["key"]
    return client


def text_of(client: Any) -> str:
    """The text of the session that the client has."""
    return str(client.cookies["oakum-session-80"]) + str(client.headers[GUARD_HEADER])


def test_the_cookie_opens_what_the_token_opens_and_is_not_the_token(api: ApiUnderTest) -> None:
    token = api.new_token("uwe", Role.USER)
    client = signed_in(api, token)
    told = client.get("/v1/session").json()
    assert (told["name"], told["role"], told["may_submit"]) == ("uwe", "user", True)
    assert told["expires_at"] == pytest.approx(time.time() + SESSION_S, abs=600)
    assert token not in text_of(client)
    assert "key" not in {name for name, value in told.items() if value is not None}
    assert client.post("/v1/trainers", json=SPEC).json()["user"] == "uwe"
    assert client.get("/v1/trainers").json()["trainers"][0]["is_private"] is False


def test_no_script_and_no_other_site_gets_the_cookie(api: ApiUnderTest) -> None:
    body = {"token": api.new_token("uwe", Role.VIEWER)}
    set_cookie = api.anonymous.post("/v1/session", json=body, headers=GUARD).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(set_cookie.split("; "))
    assert "Secure" not in set_cookie.split("; ")
    api.anonymous.base_url = "https://testserver"
    safe = api.anonymous.post("/v1/session", json=body, headers=GUARD).headers["Set-Cookie"]
    assert "Secure" in safe.split("; ")
    assert set_cookie.startswith("oakum-session-80=")
    assert safe.startswith("oakum-session-443=")


def test_neither_half_of_a_session_opens_anything(api: ApiUnderTest) -> None:
    """Another web server on the service's host gets the cookie of everybody who visits it."""
    client = signed_in(api, api.new_token("anton", Role.ADMIN))
    api.submit()
    thief = api.client(None)
    thief.cookies.update(client.cookies)
    for method, path in (
        ("GET", "/v1/trainers"),
        ("POST", "/v1/trainers/digits/cancel"),
        ("PUT", "/v1/hold"),
        ("DELETE", "/v1/session"),
        ("PATCH", "/v1/trainers/digits"),
    ):
        for key in ("1", "0" * 16, client.cookies["oakum-session-80"][-16:]):
            problem_of(thief.request(method, path, json={}, headers={GUARD_HEADER: key}), 401)
        problem_of(thief.request(method, path, json={}), 401)
        key_alone = {GUARD_HEADER: client.headers[GUARD_HEADER]}
        problem_of(api.anonymous.request(method, path, json={}, headers=key_alone), 401)
    assert api.viewer.get("/v1/trainers/digits").json()["state"] != "cancelling"
    assert client.put("/v1/hold", json={"reason": "a test"}).json()["by"] == "anton"


def test_another_site_cannot_sign_a_browser_in(api: ApiUnderTest) -> None:
    problem_of(api.anonymous.post("/v1/session", json={"token": api.new_token("uwe", Role.USER)}), 403)


def test_a_page_of_another_session_than_the_browser_s_reads_and_changes_nothing(api: ApiUnderTest) -> None:
    """All tabs of a browser have the cookie of whoever signed in last; each has its own half of the session."""
    client = signed_in(api, api.new_token("uwe", Role.USER))
    of_user = {GUARD_HEADER: client.headers[GUARD_HEADER]}
    assert client.get("/v1/trainers", headers=of_user).status_code == 200
    answer = client.post("/v1/session", json={"token": api.new_token("anton", Role.ADMIN)}, headers=GUARD)
    of_admin = {GUARD_HEADER: answer.json()["key"]}
    assert "load the page again" in problem_of(client.get("/v1/trainers", headers=of_user), 401)["detail"]
    problem_of(client.put("/v1/hold", json={"reason": "a test"}, headers=of_user), 401)
    assert client.get("/v1/hold", headers=of_admin).json()["held"] is False
    assert client.put("/v1/hold", json={"reason": "a test"}, headers=of_admin).json()["by"] == "anton"


def test_signing_out_ends_the_session_and_leaves_the_token(api: ApiUnderTest) -> None:
    token = api.new_token("uwe", Role.USER)
    client = signed_in(api, token)
    stolen = dict(client.cookies)
    answer = client.delete("/v1/session")
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert not client.cookies
    thief = api.client(None)
    thief.cookies.update(stolen)
    thief.headers[GUARD_HEADER] = client.headers[GUARD_HEADER]
    problem_of(thief.get("/v1/trainers"), 401)
    bearer = api.client(token)
    assert bearer.delete("/v1/session").status_code == 204
    assert bearer.get("/v1/trainers").status_code == 200


def test_a_session_ends_with_its_token(api: ApiUnderTest) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "uwe", "expires_in_s": 900}).json()
    client = signed_in(api, made["token"])
    assert client.get("/v1/session").json()["expires_at"] == pytest.approx(made["expires_at"])
    another = api.client(text_of(signed_in(api, made["token"])))
    again = signed_in(api, text_of(client))  # from one session to another
    assert api.admin.delete(f"/v1/tokens/{made['id']}").status_code == 204
    for each in (client, another, again):
        problem_of(each.get("/v1/trainers"), 401)


def test_a_session_ends_with_its_token_that_is_replaced(api: ApiUnderTest) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "uwe"}).json()
    client = signed_in(api, made["token"])
    replaced = api.client(made["token"]).post(f"/v1/tokens/{made['id']}/rotate", json={"overlap_s": 600}).json()
    assert client.get("/v1/session").json()["expires_at"] == pytest.approx(time.time() + 600, abs=60)
    newer = signed_in(api, replaced["token"])
    api.client(replaced["token"]).post(f"/v1/tokens/{replaced['id']}/rotate", json={"overlap_s": 0})
    problem_of(newer.get("/v1/trainers"), 401)
    problem_of(api.client(replaced["token"]).get("/v1/trainers"), 401)


def test_a_session_does_not_renew_itself(api: ApiUnderTest) -> None:
    made = api.admin.post("/v1/tokens", json={"name": "anton", "role": "admin", "expires_in_s": 900}).json()
    client = signed_in(api, made["token"])
    own = tokens.short_id(tokens.digest(text_of(client)))
    assert "sign in again" in problem_of(client.post(f"/v1/tokens/{own}/rotate", json={}), 409)["detail"]
    for path, body in (
        (f"/v1/tokens/{made['id']}/rotate", {"overlap_s": 60}),
        ("/v1/tokens", {"name": "anton", "role": "admin"}),
        ("/v1/tokens", {"name": "uwe", "expires_in_s": 1000}),
    ):
        told = problem_of(client.post(path, json=body), 403)["detail"]
        assert told.startswith("you have signed in with a token that ends at 20")
    assert client.post("/v1/tokens", json={"name": "uwe", "expires_in_s": 300}).status_code == 201
    assert api.client(made["token"]).post("/v1/tokens", json={"name": "uwe"}).status_code == 201
    lasting = signed_in(api, api.new_token("anna", Role.ADMIN))
    assert lasting.post("/v1/tokens", json={"name": "uwe"}).status_code == 201


def test_no_token_is_named_like_a_session(api: ApiUnderTest) -> None:
    body = {"name": "uwe", "label": "session of " + "0" * 12}
    problem_of(api.admin.post("/v1/tokens", json=body), 422)


def test_a_revoked_session_leaves_the_token_and_its_other_sessions(api: ApiUnderTest) -> None:
    token = api.new_token("uwe", Role.USER)
    one, other = signed_in(api, token), signed_in(api, token)
    newest = api.client(token).get("/v1/tokens").json()["tokens"][-1]["id"]
    assert other.delete(f"/v1/tokens/{newest}").status_code == 204
    problem_of(other.get("/v1/trainers"), 401)
    assert one.get("/v1/trainers").status_code == api.client(token).get("/v1/trainers").status_code == 200


def test_an_expired_session_opens_nothing(api: ApiUnderTest) -> None:
    client = signed_in(api, api.new_token("uwe", Role.USER))
    with api.sessions.begin() as session:
        row = session.get_one(ApiToken, tokens.digest(text_of(client)))
        row.expires_at = time.time() - 1
    problem_of(client.get("/v1/trainers"), 401)


def test_a_token_has_a_limited_number_of_sessions(api: ApiUnderTest) -> None:
    token = api.new_token("uwe", Role.USER)
    first = signed_in(api, token)
    for _ in range(50):
        last = signed_in(api, token)
    problem_of(first.get("/v1/trainers"), 401)
    assert last.get("/v1/trainers").status_code == 200
    assert len(api.client(token).get("/v1/tokens").json()["tokens"]) == 51


@pytest.mark.parametrize("token", ["oakum-guessed", "x"])
def test_an_unknown_token_begins_no_session(api: ApiUnderTest, token: str) -> None:
    answer = api.anonymous.post("/v1/session", json={"token": token}, headers=GUARD)
    problem_of(answer, 401)
    assert "Set-Cookie" not in answer.headers


def test_a_hook_s_token_begins_none_either(api: ApiUnderTest) -> None:
    token = api.new_token("slurm", Role.HOOK)
    problem_of(api.anonymous.post("/v1/session", json={"token": token}, headers=GUARD), 403)


def test_who_signs_in_and_out_is_in_the_audit_log(api: ApiUnderTest) -> None:
    client = signed_in(api, api.new_token("uwe", Role.USER))
    client.delete("/v1/session")
    entries = api.admin.get("/v1/audit?actor=uwe").json()["entries"]
    assert [entry["action"] for entry in entries] == ["session.ended", "session.begun"]
