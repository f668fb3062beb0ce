"""The agent's line to the service: a long poll for directives and a reporter that posts the newest state."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from oakum_worker.protocol import Directive, FragmentConfig, FragmentReport

_log = logging.getLogger("oakum.agent")
_POLL_S = 10.0
_HEARTBEAT_S = 1.0
_RETRY_S = 0.3
_LAST_WORDS_S = 10.0
_HURRIED_LAST_WORDS_S = 0.6
_LONGEST_TRY_S = 1.0
"""Of saying the last words: whoever comes to be in a hurry meanwhile is not kept longer."""


@dataclass(frozen=True)
class Gone:
    """The service does not want the fragment any more (410)."""


@dataclass(frozen=True)
class Unheard:
    """The service has not answered for longer than the orphan timeout."""

    seconds: float


class ServiceLink:
    """Two threads over HTTP. A service that is down costs nothing but time until the orphan timeout."""

    def __init__(self, config: FragmentConfig, deliver: Callable[[object], None]) -> None:
        self._config = config
        self._deliver = deliver
        self._url = config.service_url
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {config.token}"}, timeout=httpx.Timeout(5.0, connect=1.0)
        )
        self._path = f"/v1/fragments/{config.fragment}"
        self._changed = threading.Condition()
        self._report: FragmentReport | None = None
        self._sent = 0
        self._stopping = False
        self._heard_s = time.monotonic()

    def start(self) -> None:
        """Begin to poll and to report."""
        threading.Thread(target=self._poll, daemon=True, name="directives").start()
        threading.Thread(target=self._post, daemon=True, name="reports").start()

    def report(self, report: FragmentReport) -> None:
        """Make this the state that is posted next; an unsent older one is dropped."""
        with self._changed:
            self._report = report
            self._changed.notify_all()

    def stop(self, last: FragmentReport, in_a_hurry: Callable[[], bool]) -> None:
        """Post the last report; for a short while only where the scheduler wants the node back."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        began_s = time.monotonic()
        while True:
            given_s = _HURRIED_LAST_WORDS_S if in_a_hurry() else _LAST_WORDS_S
            left_s = began_s + given_s - time.monotonic()
            if left_s <= 0:
                return
            try:
                self._send(last, timeout_s=min(max(left_s, 0.05), _LONGEST_TRY_S))
                return
            except httpx.HTTPError:
                time.sleep(0.05)

    def _post(self) -> None:
        while not self._stopping:
            with self._changed:
                self._changed.wait_for(self._unsent, timeout=_HEARTBEAT_S)
                report = self._report
            if report is None or self._stopping:
                continue
            try:
                self._send(report, timeout_s=5.0)
                self._sent = report.sequence
            except httpx.HTTPError as error:
                self._fail(error)

    def _unsent(self) -> bool:
        return self._stopping or (self._report is not None and self._report.sequence > self._sent)

    def _send(self, report: FragmentReport, timeout_s: float) -> None:
        response = self._client.post(
            f"{self._url}{self._path}/report",
            content=report.model_dump_json(),
            headers={"Content-Type": "application/json"},
            timeout=timeout_s,
        )
        self._check(response)

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
            except httpx.HTTPError as error:
                self._fail(error)

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == httpx.codes.GONE:
            self._heard_s = time.monotonic()
            self._deliver(Gone())
            return
        response.raise_for_status()
        self._heard_s = time.monotonic()

    def _fail(self, error: httpx.HTTPError) -> None:
        """Wait before the next try, look whether the service has moved, and say when it is silent too long."""
        silent_s = time.monotonic() - self._heard_s
        if silent_s > self._config.orphan_timeout_s:
            self._deliver(Unheard(silent_s))
        if self._config.service_file is not None:
            self._look_up(Path(self._config.service_file))
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, timeout=_RETRY_S)

    def _look_up(self, file: Path) -> None:
        try:
            url = json.loads(file.read_text(encoding="utf-8"))["url"]
        except (OSError, ValueError, KeyError, TypeError):
            return  # being written, or not there yet: the address known so far stays good
        if url != self._url:
            _log.info("the service has moved to %s", url)
            self._url = url
