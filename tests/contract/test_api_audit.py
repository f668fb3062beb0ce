"""The audit log: who did what, from where, and that nobody changes it afterwards."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import delete, text
from sqlalchemy.exc import DBAPIError

from api_under_test import ApiUnderTest, problem_of
from cells import each
from oakum_service.api.auth import Role
from oakum_service.db.models.events import AuditRecord
from oakum_service.identity import audit
from oakum_service.states import TrainerState
from postgres_database import on_both_databases


def entries(api: ApiUnderTest, client: Any = None, **asked: object) -> list[dict[str, Any]]:
    """The acts over the API that a client is told of, by default an administrator's; the newest first. The tokens
    of the test itself are made without it."""
    found: list[dict[str, Any]] = (client or api.admin).get("/v1/audit", params=asked).json()["entries"]
    return [entry for entry in found if entry["role"] != "local"]


def test_an_act_names_who_did_it_with_which_token_and_from_where(api: ApiUnderTest) -> None:
    answer = api.user.post(
        "/v1/trainers",
        json={"name": "digits", "entrypoint": "a:b", "global_batch": 8, "epochs": 1},
        headers={"X-Request-ID": "ci-42"},
    )
    assert answer.headers["X-Request-ID"] == "ci-42"
    [mine] = [row for row in api.admin.get("/v1/tokens").json()["tokens"] if row["name"] == "ulla"]
    [entry] = entries(api, action="trainer.submitted")
    assert entry.pop("at") == pytest.approx(time.time(), abs=60)
    assert entry == {
        **{"id": entry["id"], "actor": "ulla", "role": "user", "token": mine["id"], "request": "ci-42"},
        **{"address": "testclient", "action": "trainer.submitted", "subject": "digits", "owner": "ulla"},
        **{"refused": False, "details": {"id": answer.json()["id"]}},
    }


ACTS: list[tuple[str, Callable[[ApiUnderTest], Any], dict[str, Any]]] = [
    (
        "trainer.changed",
        lambda api: api.admin.patch("/v1/trainers/digits", json={"priority": 3, "max_nodes": 2}),
        {"before": {"priority": 0, "max_nodes": None}, "after": {"priority": 3, "max_nodes": 2}},
    ),
    ("trainer.cancelled", lambda api: api.user.post("/v1/trainers/digits/cancel"), {}),
    (
        "trainer.paused",
        lambda api: api.user.put("/v1/trainers/digits/pause", json={"reason": "lunch"}),
        {"reason": "lunch"},
    ),
    ("service.held", lambda api: api.admin.put("/v1/hold", json={"reason": "repair"}), {"reason": "repair"}),
    (
        "token.created",
        lambda api: api.admin.post("/v1/tokens", json={"name": "zoe", "role": "user", "label": "x"}),
        {"role": "user", "label": "x"},
    ),
]


@pytest.mark.parametrize(("action", "act", "details"), ACTS, ids=[act[0] for act in ACTS])
def test_each_change_is_written_down_with_what_was_changed(
    api: ApiUnderTest, action: str, act: Callable[[ApiUnderTest], Any], details: dict[str, Any]
) -> None:
    trainer = api.submit()
    assert act(api).is_success
    [entry] = entries(api, action=action)
    found = {name: value for name, value in entry["details"].items() if value != trainer["id"]}
    if action == "trainer.changed":
        assert found["before"].keys() == {"priority", "max_nodes"}
        assert (found["before"]["priority"], found["after"]) == (0, details["after"])
    else:
        assert found == details
    assert not re.search(r"oakum-\w{8}", str(entries(api))), "a token's text is in the log"


def test_what_ends_is_written_down_once(api: ApiUnderTest) -> None:
    api.submit()
    api.user.put("/v1/trainers/digits/pause", json={})
    api.admin.put("/v1/hold", json={})
    for _ in range(2):
        assert api.user.delete("/v1/trainers/digits/pause").is_success
        assert api.admin.delete("/v1/hold").is_success
    done = [entry["action"] for entry in entries(api)]
    assert (done.count("trainer.unpaused"), done.count("service.resumed")) == (1, 1)


def test_a_retry_a_rotation_and_a_revocation_are_acts_too(api: ApiUnderTest) -> None:
    api.submit()
    api.end(api.user.get("/v1/trainers/digits").json()["id"], TrainerState.FAILED)
    assert api.user.post("/v1/trainers/digits/retry").is_success
    [mine] = api.user.get("/v1/tokens").json()["tokens"]
    assert api.user.post(f"/v1/tokens/{mine['id']}/rotate", json={}).is_success
    assert api.admin.delete(f"/v1/tokens/{mine['id']}").is_success
    done = [(entry["actor"], entry["action"]) for entry in entries(api)]
    assert done[:3] == [("anna", "token.revoked"), ("ulla", "token.rotated"), ("ulla", "trainer.retried")]


def test_a_repeated_request_is_one_act(api: ApiUnderTest) -> None:
    api.submit_at_once(5, "one-key")
    assert len(entries(api, action="trainer.submitted")) == 1


def test_an_act_that_fails_is_none(api: ApiUnderTest) -> None:
    api.submit()
    api.user.post("/v1/trainers/digits/cancel")
    api.end(api.user.get("/v1/trainers/digits").json()["id"])
    problem_of(api.user.post("/v1/trainers/digits/cancel"), 409)
    assert len(entries(api, action="trainer.cancelled")) == 1


def test_a_refusal_is_written_down_and_many_do_not_fill_the_log(api: ApiUnderTest) -> None:
    problem_of(api.user.put("/v1/hold", json={"reason": "mine"}), 403)
    [entry] = entries(api, action="refused")
    assert (entry["actor"], entry["subject"], entry["refused"]) == ("ulla", "PUT /v1/hold", True)
    assert entry["details"] == {"why": "PUT /v1/hold needs the role admin; this token has user"}
    for _ in range(20):
        problem_of(api.user.put("/v1/hold", json={}), 403)
    assert len(entries(api, action="refused")) < 10
    problem_of(api.viewer.put("/v1/hold", json={}), 403)
    assert entries(api, action="refused")[0]["actor"] == "vera"


def test_users_read_what_concerns_them(api: ApiUnderTest) -> None:
    other = api.client(api.new_token("otto", Role.USER))
    api.submit(name="hers")
    other.post("/v1/trainers", json={"name": "his", "entrypoint": "a:b", "global_batch": 8, "epochs": 1})
    api.admin.post("/v1/trainers/hers/cancel")
    assert [(one["actor"], one["subject"]) for one in entries(api, api.user)] == [
        ("anna", "hers"),
        ("ulla", "hers"),
    ]
    assert [one["subject"] for one in entries(api, other)] == ["his"]
    assert [one["subject"] for one in entries(api, other, subject="hers")] == []
    assert [one["subject"] for one in entries(api)] == ["hers", "his", "hers"]
    problem_of(api.hook.get("/v1/audit"), 403)
    problem_of(api.anonymous.get("/v1/audit"), 401)


def test_pages_have_each_act_once(api: ApiUnderTest) -> None:
    for number in range(7):
        api.submit(name=f"t{number}")
    found, before = [], None
    while True:
        asked = {"limit": 3} | ({} if before is None else {"before": before})
        answer = api.admin.get("/v1/audit", params=asked).json()
        found += [entry["subject"] for entry in answer["entries"] if entry["action"] == "trainer.submitted"]
        if (before := answer["next"]) is None:
            break
    assert found == [f"t{number}" for number in reversed(range(7))]


@on_both_databases
def test_the_database_refuses_to_change_the_log(api: ApiUnderTest) -> None:
    api.submit()
    statements = [
        *("UPDATE audit SET actor = 'nobody'", "UPDATE audit SET at = 0 WHERE subject = 'digits'"),
        *("DELETE FROM audit", *(["TRUNCATE audit"] if api.engine.dialect.name == "postgresql" else [])),
    ]
    for statement in statements:
        with pytest.raises(DBAPIError, match="the audit log is append-only"), api.sessions.begin() as session:
            session.execute(text(statement))
        assert len(entries(api)) == 1, statement


@on_both_databases
def test_rows_are_kept_for_a_year(api: ApiUnderTest) -> None:
    now = time.time()
    with api.sessions.begin() as session:
        # A row's age cannot be changed afterwards, so rows of the past are written as such.
        for days in (359, 361, 366):
            session.add(
                AuditRecord(
                    **{"at": now - days * 86400, "actor": f"old {days}", "role": "admin", "token": ""},
                    **{"request": "", "address": "", "action": "x", "subject": "y", "owner": None},
                    **{"refused": False, "details": {}},
                )
            )
    with api.sessions.begin() as session:
        audit.forget(session, now)
    assert [entry["actor"] for entry in entries(api) if entry["action"] == "x"] == [
        "old 361",
        "old 359",
    ]
    with pytest.raises(DBAPIError), api.sessions.begin() as session:
        session.execute(delete(AuditRecord))


@each("sent", ["", "a" * 65, "two words", "b\u00e4r", "x;y", "<script>"])
def test_an_id_that_is_none_is_replaced(api: ApiUnderTest, sent: str) -> None:
    answer = api.anonymous.get("/healthz", headers={"X-Request-ID": sent.encode()})
    assert re.fullmatch("[0-9a-f]{16}", answer.headers["X-Request-ID"])


def test_an_error_of_the_services_own_names_its_request(
    api: ApiUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("nothing works")

    monkeypatch.setattr("oakum_service.api.hold.hold.held", fail)
    answer = api.admin.get("/v1/hold", headers={"X-Request-ID": "r-7"})
    assert problem_of(answer, 500)["detail"] == "an error of the service's own; see its log of request r-7"
    assert answer.headers["X-Request-ID"] == "r-7"
    assert "GET /v1/hold (request r-7) failed" in caplog.text
