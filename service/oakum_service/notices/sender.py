"""Sends due notices from threads of its own, so that the control loop never waits for a recipient."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from oakum_service import clock
from oakum_service.change_signal import ChangeSignal
from oakum_service.config import NoticeSettings
from oakum_service.db import event_log
from oakum_service.db.engine import Sessions
from oakum_service.db.lease import LeaseHolder
from oakum_service.documents.notice import Notice
from oakum_service.errors import NoticeFailed, NoticeRefused
from oakum_service.notices import outbox
from oakum_service.notices.mail import hand_over, message_of
from oakum_service.notices.outbox import Delivery
from oakum_service.notices.starving import starving
from oakum_service.notices.webhook import post, signature
from oakum_worker.spec_options import shown_target

_log = logging.getLogger("oakum")
EVERY_S = 1.0
_LOOK_S = 5.0
"""Seconds between two searches for starved trainers."""
_AT_ONCE = 8
_LONGEST_WAIT_S = 3600.0


class Courier:
    """Sends one notice to one recipient, by webhook or e-mail."""

    def __init__(self, settings: NoticeSettings, url: str) -> None:
        """`url`: address of the dashboard, as people see it."""
        self._settings = settings
        self._url = url

    def deliver(self, channel: str, target: str, notice: Notice) -> None:
        """Send the notice now. Raises `NoticeRefused` if no further attempt can succeed, otherwise
        `NoticeFailed` on failure."""
        if channel == "email":
            self._mail(target, notice)
        else:
            self._call(target, notice)

    def _mail(self, recipient: str, notice: Notice) -> None:
        settings = self._settings
        if settings.mail_from is None:
            raise NoticeRefused("this service sends no e-mail: an administrator can set OAKUM_NOTICES_MAIL_FROM")
        mail = message_of(notice, f"{self._url}/", settings.mail_from, recipient)
        hand_over(mail, settings.sendmail, settings.mail_from, settings.timeout_s)

    def _call(self, url: str, notice: Notice) -> None:
        document = {**dataclasses.asdict(notice), "url": f"{self._url}/"}
        body = json.dumps(document, separators=(",", ":")).encode()
        headers = {
            "User-Agent": f"oakum/{version('oakum')}",
            "Idempotency-Key": notice.id,
            "Oakum-Event": notice.event,
        }
        if self._settings.secret_file is not None:
            headers["Oakum-Signature"] = signature(_secret(self._settings.secret_file), clock.now(), body)
        try:
            target = self._settings.allowed.target(url)
        except OSError as error:
            raise NoticeFailed(f"the host is not found: {error.strerror or error}") from error
        post(target, body, headers, self._settings.timeout_s)


def _secret(file: Path) -> bytes:
    """The signing secret. Raises `NoticeFailed` where its file cannot be read. The file is read for each call, so
    the secret can be changed without a restart; it is not in the environment, which users' code may see."""
    try:
        return file.read_bytes().strip()
    except OSError as error:
        raise NoticeFailed(f"the secret in {file} cannot be read: {error.strerror}") from error


def _in_daemon_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Run `work` in a thread that does not keep the process from ending. Returns a future that is done when `work`
    has returned, and raises what `work` raised."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def run() -> None:
        failed: BaseException | None = None
        try:
            work()
        except BaseException as error:
            failed = error
        with suppress(RuntimeError):  # the event loop is closed: nobody waits for the result
            loop.call_soon_threadsafe(settle, failed)

    threading.Thread(target=run, daemon=True, name="notice").start()
    return future


class NoticeSender:
    """Sends the notices in the outbox. Only the process that holds the lease sends."""

    def __init__(self, settings: NoticeSettings, url: str, readers: Sessions, lease: LeaseHolder) -> None:
        self._settings = settings
        self._courier = Courier(settings, url)
        self._readers = readers
        self._lease = lease
        self._closing = ChangeSignal()
        self._looked_at = 0.0

    async def turn(self) -> None:
        """Attempt every due delivery once. After `stop`, return without waiting for recipients that have not
        answered."""
        deliveries = await asyncio.to_thread(self._due)
        trying = asyncio.gather(*(_in_daemon_thread(partial(self._try, each)) for each in deliveries))
        closing = asyncio.ensure_future(self._closing.wait(0, _LONGEST_WAIT_S))
        either: set[asyncio.Future[Any]] = {trying, closing}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if trying.done():
            await trying
        else:
            trying.cancel()

    def stop(self) -> None:
        """Stop waiting for recipients. A delivery not yet recorded as sent is repeated later under the same id."""
        self._closing.close()

    def _due(self) -> list[Delivery]:
        now = clock.now()
        self._announce_starving(now)
        with self._readers.begin() as session:
            if not outbox.something_due(session, now):
                return []
        with self._lease.writing() as session:
            outbox.address(session, self._settings.everybody, self._settings.users)
            session.flush()
            return outbox.due(session, now, _AT_ONCE)

    def _announce_starving(self, now: float) -> None:
        if abs(now - self._looked_at) < _LOOK_S:
            return
        self._looked_at = now
        with self._readers.begin() as session:
            if not starving(session, now, self._settings.starved_after_s):
                return
        with self._lease.writing() as session:
            for trainer, text in starving(session, now, self._settings.starved_after_s):
                outbox.announce(session, trainer, "starved", text, now, which=str(trainer.waiting_since))

    def _try(self, delivery: Delivery) -> None:
        try:
            self._courier.deliver(delivery.channel, delivery.target, delivery.document)
        except NoticeRefused as error:
            self._write_down(delivery, str(error), again=False)
        except NoticeFailed as error:
            self._write_down(delivery, str(error), again=delivery.attempts + 1 < self._settings.attempts)
        except (
            Exception
        ) as error:  # an unexpected error of a library must not keep the next notices from being sent
            _log.exception("a notice could not be sent")
            self._write_down(delivery, type(error).__name__, again=delivery.attempts + 1 < self._settings.attempts)
        else:
            with self._lease.writing() as session:
                outbox.sent(session, delivery, clock.now())

    def _write_down(self, delivery: Delivery, error: str, *, again: bool) -> None:
        wait_s = min(self._settings.retry_s * 2**delivery.attempts, _LONGEST_WAIT_S)
        with self._lease.writing() as session:
            outbox.failed(session, delivery, error, clock.now() + wait_s if again else None)
            if not again:
                where = shown_target(delivery.channel, delivery.target)
                text = f"the notice that it has {delivery.document.event} was not delivered to {where}: {error}"
                event_log.record(session, "notice.failed", delivery.document.trainer, text)
