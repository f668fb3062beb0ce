"""The agent's line to the service: a long poll for directives and a reporter that posts the newest state."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx
from pydantic import ValidationError

from oakum_worker.fragment_config import FragmentConfig
from oakum_worker.protocol import REPORT_INTERVAL, Directive, FragmentReport, NodeUse, Phase

_log = logging.getLogger("oakum.agent")
_POLL_S = 10.0
_HEARTBEAT_S = 1.0
"""Seconds between two reports where the service does not ask for longer intervals."""
_LONGEST_INTERVAL_S = 30.0
_RETRY_S = 0.3
_LONGEST_WAIT_S = 5.0
"""Longest wait, in seconds, that a service may ask for: an agent that is silent for longer counts as lost."""
_LAST_WORDS_S = 10.0
_OUTCOMES = (Phase.FINISHED, Phase.FAILED)
"""Phases of which a service that is not there now has to hear: nobody else can tell it, and it would launch again
what has ended."""
_REFUSALS = (400, 401, 403, 413, 422)
"""Answers to a report that a service gives again; others may be those of a proxy before a service that is away."""
_HURRIED_LAST_WORDS_S = 0.6
_LOOK_S = 0.1
"""Seconds between two looks whether there is a hurry, while the last report is on its way."""
_LONGEST_TRY_S = 1.0
"""Longest try, in seconds, to post the last report, so that a signal during a try delays the exit no longer."""


@dataclass(frozen=True)
class Gone:
    """Event: the service has answered that it no longer wants the fragment (HTTP 410)."""


@dataclass(frozen=True)
class Unheard:
    """Event: the service has not answered for longer than the orphan timeout."""

    seconds: float


class ServiceLink:
    """The agent's connection to the service over HTTP: one thread asks for directives, another posts reports. Both
    try again while the service does not answer."""

    def __init__(
        self,
        config: FragmentConfig,
        deliver: Callable[[object], None],
        take_use: Callable[[], NodeUse | None] = lambda: None,
    ) -> None:
        """`take_use` gives what a report says of the node, which makes no report due."""
        self._config = config
        self._deliver = deliver
        self._take_use = take_use
        self._url = config.service_url
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {config.token}"},
            timeout=httpx.Timeout(5.0, connect=1.0),
            verify=True if config.service_ca is None else ssl.create_default_context(cadata=config.service_ca),
        )
        self._path = f"/v1/fragments/{config.fragment}"
        self._changed = threading.Condition()
        self._report: FragmentReport | None = None
        self._sent: FragmentReport | None = None
        self._posting: FragmentReport | None = None
        """What the reporter is about to have sent."""
        self._interval_s = _HEARTBEAT_S
        self._stopping = False
        self._heard_s = time.monotonic()
        self._refusal = ""

    def start(self) -> None:
        """Begin to poll and to report."""
        threading.Thread(target=self._poll, daemon=True, name="directives").start()
        threading.Thread(target=self._post, daemon=True, name="reports").start()

    def report(self, report: FragmentReport) -> None:
        """Make `report` the one that is posted next; an older unsent report is dropped."""
        with self._changed:
            self._report = report
            self._changed.notify_all()

    def stop(self, last: FragmentReport, in_a_hurry: Callable[[], bool]) -> None:
        """Stop both threads, and see that the `last` report is posted, trying for at most 10 s, or the orphan
        timeout where it tells how training has ended and the service is away, or 0.6 s if `in_a_hurry()` becomes
        true. Returns whether or not that succeeds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        began_s = time.monotonic()
        patience_s = self._config.orphan_timeout_s if last.phase in _OUTCOMES else _LAST_WORDS_S
        again_s = began_s
        while self._sent is not last:
            now_s = time.monotonic()
            left_s = began_s + (_HURRIED_LAST_WORDS_S if in_a_hurry() else patience_s) - now_s
            if left_s <= 0:
                return
            with self._changed:
                if self._posting is last or now_s < again_s:
                    self._changed.wait(timeout=min(left_s, _LOOK_S))
                    continue
            try:
                self._send(last, timeout_s=min(max(left_s, 0.05), _LONGEST_TRY_S))
                return
            except httpx.HTTPError as error:
                if _is_refusal(error):
                    patience_s = min(patience_s, now_s - began_s + _LAST_WORDS_S)  # it is there, and has read it
                again_s = time.monotonic() + _wait_s(error)
                self._look_up()

    def _post(self) -> None:
        while not self._stopping:
            with self._changed:
                self._changed.wait_for(self._is_due, timeout=self._interval_s)
                report = self._report
                if report is None or self._stopping:
                    continue
                self._posting = report
            try:
                self._send(report.model_copy(update={"use": self._take_use()}), timeout_s=5.0)
                self._sent = report
            except httpx.HTTPError as error:
                self._fail(error)
            finally:
                with self._changed:
                    self._posting = None
                    self._changed.notify_all()

    def _is_due(self) -> bool:
        """Whether a report is to be posted now: the first report, and any report while stopping; otherwise one
        that has changed since it was last posted, if the service has not asked for longer intervals or an
        urgent field has changed."""
        if self._stopping or self._report is None or self._sent is None:
            return self._stopping or self._report is not None
        if self._report.sequence <= self._sent.sequence:
            return False
        return self._interval_s <= _HEARTBEAT_S or self._report.urgent != self._sent.urgent

    def _send(self, report: FragmentReport, timeout_s: float) -> None:
        response = self._client.post(
            f"{self._url}{self._path}/report",
            content=report.model_dump_json(),
            headers={"Content-Type": "application/json"},
            timeout=timeout_s,
        )
        self._check(response)
        self._interval_s = _interval_s(response.headers.get(REPORT_INTERVAL, ""))

    def _poll(self) -> None:
        revision = -1
        while not self._stopping:
            try:
                response = self._client.get(
                    f"{self._url}{self._path}/directive",
                    params={"after": revision, "wait_s": _POLL_S},
                    timeout=_POLL_S + 5.0,
                )
                self._check(response)
                if response.status_code == httpx.codes.OK:
                    directive = Directive.model_validate_json(response.content)
                    revision = directive.revision
                    self._deliver(directive)
            except (httpx.HTTPError, ValidationError) as error:
                self._fail(error)

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == httpx.codes.GONE:
            self._heard_s = time.monotonic()
            self._deliver(Gone())
            return
        if response.is_client_error and response.text != self._refusal:
            self._refusal = response.text
            _log.error(
                "the service refuses what this agent, of Oakum %s, sends: %s", version("oakum"), response.text
            )
        response.raise_for_status()
        self._heard_s = time.monotonic()

    def _fail(self, error: httpx.HTTPError | ValidationError) -> None:
        """Report a service that is silent for too long, look for a new address of it, and wait before the next
        try, for as long as the service asks if it has had too many requests."""
        silent_s = time.monotonic() - self._heard_s
        if silent_s > self._config.orphan_timeout_s:
            self._deliver(Unheard(silent_s))
        self._look_up()
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, timeout=_wait_s(error))

    def _look_up(self) -> None:
        if self._config.service_file is None:
            return
        try:
            url = json.loads(Path(self._config.service_file).read_text(encoding="utf-8"))["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # being written, or not there yet: the address known so far stays good
        if url != self._url:
            _log.info("the service has moved to %s", url)
            self._url = url


def _is_refusal(error: httpx.HTTPError) -> bool:
    """Whether the service has answered that it does not take this, and will not later."""
    if not isinstance(error, httpx.HTTPStatusError):
        return False
    return error.response.status_code in _REFUSALS


def _wait_s(error: httpx.HTTPError | ValidationError) -> float:
    """Seconds until the next try: after too many requests what the answer's `Retry-After` says, within reason."""
    if not isinstance(error, httpx.HTTPStatusError) or error.response.status_code != httpx.codes.TOO_MANY_REQUESTS:
        return _RETRY_S
    retry_after = error.response.headers.get("Retry-After", "")
    return max(_RETRY_S, min(float(retry_after), _LONGEST_WAIT_S)) if retry_after.isdecimal() else _RETRY_S


def _interval_s(text: str) -> float:
    """The interval that the service has told, in seconds; 1 s where it has told none that makes sense."""
    try:
        return min(_LONGEST_INTERVAL_S, max(_HEARTBEAT_S, float(text)))
    except ValueError:
        return _HEARTBEAT_S
