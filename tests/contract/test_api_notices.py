"""/v1/notices, and what the API lets a spec say of them."""

from __future__ import annotations

import time

import pytest

from api_under_test import ApiUnderTest, problem_of
from oakum_service.db.models.events import NoticeRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.notice import Notice

WEBHOOK = "https://hooks.example.org/services/T0/s3cret"


def test_a_webhooks_path_is_shown_to_nobody_and_told_to_no_node(api: ApiUnderTest) -> None:
    submitted = api.submit(notify=[{"webhook": WEBHOOK, "on": ["failed"]}])
    shown = {"webhook": "https://hooks.example.org/...", "email": None, "on": ["failed"]}
    assert submitted["spec"]["notify"] == [shown]
    for path in ("/v1/trainers", "/v1/trainers/digits", "/v1/events/recent"):
        assert "s3cret" not in api.viewer.get(path).text
    with api.sessions.begin() as session:
        (trainer,) = session.query(Trainer).all()
        assert trainer.spec.notify[0].webhook == WEBHOOK
        assert api.context.configs.make("f1", trainer, "n1", "10.0.0.1").spec.notify == ()


def test_the_change_of_another_field_keeps_the_webhook(api: ApiUnderTest) -> None:
    api.submit(notify=[{"webhook": WEBHOOK}])
    assert api.user.patch("/v1/trainers/digits", json={"max_nodes": 2}).status_code == 200
    with api.sessions.begin() as session:
        assert session.query(Trainer).one().spec.notify[0].webhook == WEBHOOK


@pytest.mark.parametrize(
    ("recipient", "said"),
    [
        ({"webhook": "http://127.0.0.1:8470/v1/hold"}, "OAKUM_NOTICES_ALLOW"),
        ({"email": "ada@example.org"}, "OAKUM_NOTICES_MAIL_FROM"),
    ],
)
def test_what_would_never_be_sent_is_refused_at_once(
    api: ApiUnderTest, recipient: dict[str, str], said: str
) -> None:
    spec = {"name": "digits", "entrypoint": "a:b", "global_batch": 8, "epochs": 1, "notify": [recipient]}
    for path in ("/v1/trainers", "/v1/trainers/check"):
        assert said in problem_of(api.user.post(path, json=spec), 409)["detail"]
    assert api.trainer_names() == []


def test_notices_are_listed_with_what_became_of_them(api: ApiUnderTest) -> None:
    trainer, now = api.submit()["id"], time.time()
    notice = Notice("failed", "digits", trainer, "ulla", "it broke", step=None, at=now)
    common = {"event": "failed", "trainer_id": trainer, "document": notice}
    with api.sessions.begin() as session:
        session.add(NoticeRecord(id="0", created_at=now, due_at=None, **common))
        session.add(
            NoticeRecord(
                id="1", channel="webhook", target=WEBHOOK, created_at=now, due_at=now + 60.0, attempts=2,
                error="hooks.example.org answers 503", **common,
            )
        )  # fmt: skip
        session.add(
            NoticeRecord(
                id="2", channel="email", target="ada@example.org", created_at=now + 1.0, due_at=None, attempts=1,
                sent_at=now + 2.0, **common,
            )
        )  # fmt: skip
    both = api.viewer.get("/v1/notices").json()["notices"]
    assert both[0] == {
        "id": "1",
        "event": "failed",
        "trainer": "digits",
        "recipient": "https://hooks.example.org/...",
        "created_at": now,
        "attempts": 2,
        "sent_at": None,
        "next_at": now + 60.0,
        "error": "hooks.example.org answers 503",
    }
    assert (both[1]["recipient"], both[1]["sent_at"]) == ("ada@example.org", now + 2.0)
    assert api.viewer.get("/v1/notices?trainer=digits&limit=1").json()["notices"] == both[1:]
    problem_of(api.viewer.get("/v1/notices?trainer=nobody"), 404)


def test_a_test_says_why_it_was_not_sent(api: ApiUnderTest) -> None:
    refused = api.user.post("/v1/notices/test", json={"webhook": "http://127.0.0.1:1/x"}).json()
    assert (refused["sent"], refused["recipient"]) == (False, "http://127.0.0.1/...")
    assert "OAKUM_NOTICES_ALLOW" in refused["error"]
    assert (
        "OAKUM_NOTICES_MAIL_FROM"
        in api.user.post("/v1/notices/test", json={"email": "ada@example.org"}).json()["error"]
    )
    problem_of(api.user.post("/v1/notices/test", json={}), 422)
