"""Notices: recorded once, sent until they are accepted, and signed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from oakum_service.config import NoticeSettings
from oakum_service.control.endings import end
from oakum_service.control.new_trainers import add_trainer
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.db.models.events import EventRecord, NoticeRecord
from oakum_service.db.models.trainers import Trainer
from oakum_service.documents.grant import Grant
from oakum_service.documents.notice import Notice
from oakum_service.errors import NoticeFailed
from oakum_service.network.webhook_addresses import VettedAddress
from oakum_service.notices import outbox, webhook
from oakum_service.notices.sender import Courier, NoticeSender
from oakum_service.notices.starving import starving
from oakum_service.orders import hold
from oakum_service.states import TrainerState
from oakum_worker.protocol import TrainingProgress
from oakum_worker.spec import TrainerSpec
from plan_records import plan_record
from receiver import Receiver
from waiting import wait_until

LOCAL = ["127.0.0.0/8"]
TEST_URL = "http://oakum.test"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def lease(sessions: Sessions) -> LeaseHolder:
    holder = LeaseHolder(sessions, alone=True)
    assert holder.acquire()
    return holder


def settings(**given: Any) -> NoticeSettings:
    return NoticeSettings(**{"allow": LOCAL, "retry_s": 0.01, **given})


def sender(sessions: Sessions, lease: LeaseHolder, **given: Any) -> NoticeSender:
    return NoticeSender(settings(**given), TEST_URL, sessions, lease)


def submit(sessions: Sessions, *notify: dict[str, Any], name: str = "digits", **row: Any) -> str:
    fields = {"name": name, "entrypoint": "a:b", "global_batch": 8, "epochs": 1, "notify": notify}
    with sessions.begin() as session:
        trainer = add_trainer(session, TrainerSpec.model_validate(fields), "ulla")
        trainer.progress = TrainingProgress(generation=1, nodes=1, step=40, total_steps=40, epoch=0, samples=320)
        for column, value in row.items():
            setattr(trainer, column, value)
        return trainer.id


def finish(sessions: Sessions, trainer: str, state: TrainerState = TrainerState.FINISHED) -> None:
    with sessions.begin() as session:
        end(session, session.get_one(Trainer, trainer), state, "finished after 40 steps", time.time())


def rows(sessions: Sessions) -> list[NoticeRecord]:
    """The rows of notices to recipients, and those that have no recipient yet."""
    with sessions.begin() as session:
        known = session.scalars(select(NoticeRecord).order_by(NoticeRecord.created_at))
        return [row for row in known if row.channel or row.due_at is not None]


def turn(sender: NoticeSender) -> None:
    asyncio.run(sender.turn())


def turn_until_done(sender: NoticeSender, sessions: Sessions) -> None:
    def is_done() -> bool:
        turn(sender)
        return all(row.due_at is None for row in rows(sessions))

    wait_until("everything is sent or given up", is_done)


def test_an_end_is_told_with_what_a_receiver_needs(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    trainer = submit(sessions, {"webhook": receiver.url})
    finish(sessions, trainer)
    turn_until_done(sender(sessions, lease), sessions)
    ((headers, body),) = receiver.requests
    document = json.loads(body)
    assert document == {
        "id": headers["Idempotency-Key"],
        "event": "finished",
        "trainer": "digits",
        "trainer_id": trainer,
        "user": "ulla",
        "message": "finished after 40 steps",
        "step": 40,
        "at": pytest.approx(time.time(), abs=3600),
        "url": f"{TEST_URL}/",
    }
    assert (headers["Oakum-Event"], headers["Content-Type"]) == ("finished", "application/json")
    (row,) = rows(sessions)
    assert (row.attempts, row.error) == (1, "")
    assert row.sent_at is not None


def test_a_receiver_that_fails_twice_gets_one_notice_three_times_under_one_id(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    receiver.statuses = [503, 500]
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    sending = sender(sessions, lease)
    turn(sending)
    (row,) = rows(sessions)
    assert (row.attempts, row.sent_at, row.error) == (1, None, "127.0.0.1 answers 503")
    turn_until_done(sending, sessions)
    assert len({headers["Idempotency-Key"] for headers, _ in receiver.requests}) == 1
    assert len(receiver.requests) == 3
    assert rows(sessions)[0].attempts == 3


def test_waits_between_tries_double(sessions: Sessions, lease: LeaseHolder, receiver: Receiver) -> None:
    receiver.statuses = [503, 503, 503]
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    waits = []
    for _ in range(3):
        turn(sender(sessions, lease, retry_s=100.0))
        with sessions.begin() as session:
            row = session.scalars(select(NoticeRecord).where(NoticeRecord.channel != "")).one()
            assert row.due_at is not None
            waits.append(round((row.due_at - time.time()) / 100.0))
            row.due_at = time.time()
    assert waits == [1, 2, 4]


def test_tries_are_bounded_and_giving_up_is_told(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    receiver.statuses = [503] * 9
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    turn_until_done(sender(sessions, lease, attempts=3), sessions)
    assert len(receiver.requests) == 3
    with sessions.begin() as session:
        event = session.scalars(select(EventRecord).where(EventRecord.kind == "notice.failed")).one()
    assert event.message.endswith("http://127.0.0.1/...: 127.0.0.1 answers 503")
    assert "s3cret" not in event.message


def test_a_redirect_is_not_followed(sessions: Sessions, lease: LeaseHolder, receiver: Receiver) -> None:
    receiver.statuses = [302]
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    turn_until_done(sender(sessions, lease), sessions)
    (row,) = rows(sessions)
    assert (row.attempts, row.sent_at) == (1, None)
    assert "a redirect, which is not followed" in row.error


def test_what_was_not_marked_as_sent_before_a_kill_is_sent_again_under_its_id(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for the process's end: nothing catches it."""

    def die(*_: object) -> None:
        raise Killed

    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    with monkeypatch.context() as patch:
        patch.setattr(outbox, "sent", die)
        with pytest.raises(Killed):
            turn(sender(sessions, lease))
    turn_until_done(sender(sessions, lease), sessions)
    first, second = (headers["Idempotency-Key"] for headers, _ in receiver.requests)
    assert first == second


def test_a_receiver_that_does_not_answer_costs_no_more_than_the_timeout(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    receiver.silent.set()
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    turn(sender(sessions, lease, timeout_s=0.2, retry_s=1000.0))
    (row,) = rows(sessions)
    assert row.error.startswith("127.0.0.1 did not take it")


def test_a_receiver_that_answers_a_byte_at_a_time_is_cut() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        taken, _ = listening.accept()
        with taken:
            while not ended.wait(0.05):
                try:
                    taken.sendall(b"H")
                except OSError:
                    return

    threading.Thread(target=drip, daemon=True).start()
    target = VettedAddress(False, "drip", listening.getsockname()[1], "127.0.0.1", "/")
    try:
        with pytest.raises(NoticeFailed, match=r"did not take it within 0\.3 s"):
            webhook.post(target, b"{}", {}, 0.3)
    finally:
        ended.set()
        listening.close()


def test_while_one_receiver_is_slow_others_are_told(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    slow = Receiver()
    slow.silent.set()
    try:
        trainer = submit(sessions, {"webhook": slow.url}, {"webhook": receiver.url})
        finish(sessions, trainer)
        thread = threading.Thread(target=turn, args=(sender(sessions, lease, timeout_s=60.0),))
        thread.start()
        wait_until("the other one is told", lambda: receiver.requests)
        wait_until("the slow one is called", lambda: slow.requests)
        assert thread.is_alive()
    finally:
        slow.close()
    thread.join(240.0)


def test_the_end_of_the_service_waits_for_no_receiver(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    receiver.silent.set()
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    sending = sender(sessions, lease, timeout_s=60.0)
    thread = threading.Thread(target=turn, args=(sending,))
    thread.start()
    wait_until("it is called", lambda: receiver.requests)
    sending.stop()
    thread.join(50.0)
    assert not thread.is_alive()
    assert [row.attempts for row in rows(sessions)] == [0], "it is sent again"


def test_a_signature_proves_the_sender_and_the_time(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("a shared secret\n")
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    turn_until_done(sender(sessions, lease, secret_file=file), sessions)
    ((headers, body),) = receiver.requests
    moment, digest = (part.partition("=")[2] for part in headers["Oakum-Signature"].split(","))
    expected = hmac.new(b"a shared secret", f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    assert digest == expected


def test_everybody_who_wants_to_know_is_told_once(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    other = {"webhook": receiver.url + "&who=team", "on": ["failed"]}
    everything = {"webhook": receiver.url}
    sending = sender(sessions, lease, everybody=[everything], users={"ulla": [everything, other]})
    finish(sessions, submit(sessions, everything))
    turn_until_done(sending, sessions)
    assert [document["event"] for document in receiver.documents()] == ["finished"]
    finish(sessions, submit(sessions, name="second"), TrainerState.FAILED)
    turn_until_done(sending, sessions)
    assert [document["event"] for document in receiver.documents()][1:] == ["failed", "failed"]


def test_where_nobody_wants_to_know_nothing_is_sent(sessions: Sessions, lease: LeaseHolder) -> None:
    finish(sessions, submit(sessions))
    turn(sender(sessions, lease))
    assert rows(sessions) == []


def sendmail(tmp_path: Path, script: str) -> Path:
    file = tmp_path / "sendmail"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_an_email_is_handed_to_sendmail_with_a_fixed_envelope(
    sessions: Sessions, lease: LeaseHolder, tmp_path: Path
) -> None:
    program = sendmail(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/arguments; cat > {tmp_path}/mail')
    finish(sessions, submit(sessions, {"email": "ada@example.org"}))
    turn_until_done(sender(sessions, lease, sendmail=program, mail_from="oakum@example.org"), sessions)
    assert (tmp_path / "arguments").read_text().split() == ["-t", "-i", "-f", "oakum@example.org"]
    mail = message_from_bytes((tmp_path / "mail").read_bytes())
    assert (mail["To"], mail["From"], mail["Subject"]) == (
        "ada@example.org",
        "oakum@example.org",
        "[Oakum] digits: finished",
    )
    assert mail["Message-ID"] == f"<{rows(sessions)[0].id}@example.org>"
    assert "finished after 40 steps" in str(mail.get_payload())


def test_a_sendmail_that_fails_is_tried_again_and_what_it_said_is_kept(
    sessions: Sessions, lease: LeaseHolder, tmp_path: Path
) -> None:
    tries = tmp_path / "tries"
    program = sendmail(tmp_path, f'cat > /dev/null; echo x >> {tries}; [ $(wc -l < {tries}) -gt 2 ] || {{ echo "queue full" >&2; exit 75; }}')  # noqa: E501  # fmt: skip
    finish(sessions, submit(sessions, {"email": "ada@example.org"}))
    sending = sender(sessions, lease, sendmail=program, mail_from="oakum@example.org")
    turn(sending)
    assert rows(sessions)[0].error == f"{program} ended with status 75: queue full"
    turn_until_done(sending, sessions)
    assert rows(sessions)[0].attempts == 3


def test_a_message_with_header_lines_in_it_stays_in_the_body(tmp_path: Path) -> None:
    program = sendmail(tmp_path, f"cat > {tmp_path}/mail")
    courier = Courier(settings(sendmail=program, mail_from="oakum@example.org"), TEST_URL)
    message = "x\r\nBcc: all@example.org\r\n.\r\n"
    notice = Notice("failed", "digits", "t1", "ulla", message, step=None, at=0.0, id="1")
    courier.deliver("email", "ada@example.org", notice)
    assert message_from_bytes((tmp_path / "mail").read_bytes())["Bcc"] is None


def plan(sessions: Sessions, trainer: str, why: str, nodes: tuple[str, ...] = ()) -> None:
    other = Grant(("n1", "n2"), "at_maximum", "its maximum is 2 nodes")
    with sessions.begin() as session:
        session.add(plan_record({trainer: Grant(nodes, why, "others gain more"), "other": other}))


def test_who_waits_long_though_nodes_are_idle_is_told_once(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    trainer = submit(sessions, {"webhook": receiver.url}, waiting_since=time.time() - 1200.0)
    plan(sessions, trainer, "others_gain_more")
    for _ in range(2):
        sending = sender(sessions, lease, starved_after_s=900.0)
        turn(sending)
        turn(sending)
    (document,) = receiver.documents()
    assert document["event"] == "starved"
    assert document["message"] == "has waited 20 min, though nodes are idle: others gain more"


@pytest.mark.parametrize("case", ["short", "no_idle_node", "too_few", "has_nodes", "held", "no_plan"])
def test_who_cannot_run_does_not_starve(sessions: Sessions, case: str) -> None:
    now = 10_000.0
    trainer = submit(sessions, waiting_since=now - (10.0 if case == "short" else 1200.0))
    whys = {"no_idle_node": "no_idle_node", "too_few": "below_minimum"}
    if case != "no_plan":
        nodes = ("n3",) if case == "has_nodes" else ()
        plan(sessions, trainer, whys.get(case, "others_gain_more"), nodes)
    with sessions.begin() as session:
        row = session.get_one(Trainer, trainer)
        row.spec = row.spec.model_copy(update={"min_nodes": 3})
        if case == "held":
            hold.begin(session, "maintenance", "anna")
        assert starving(session, now, 900.0) == []


def test_old_notices_are_forgotten_and_those_on_their_way_are_not(
    sessions: Sessions, lease: LeaseHolder, receiver: Receiver
) -> None:
    finish(sessions, submit(sessions, {"webhook": receiver.url}))
    turn_until_done(sender(sessions, lease), sessions)
    finish(sessions, submit(sessions, name="second"))
    with sessions.begin() as session:
        outbox.forget(session, time.time() + 8 * 24 * 3600.0)
    assert [row.sent_at for row in rows(sessions)] == [None]
