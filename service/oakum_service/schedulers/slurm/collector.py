"""Reads Slurm's state and posts it to the service, for sites where the service itself may not read it.

PostError
└── PostRefused     the service rejects the state or the token; repeating it cannot help
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec

from oakum_service.config import SlurmSettings
from oakum_service.errors import SchedulerError
from oakum_service.network.tls import client_context
from oakum_service.schedulers.port import AGE_HEADER
from oakum_service.schedulers.slurm.read_pace import ReadPace
from oakum_service.schedulers.slurm.reading.pushed_source import encode_state
from oakum_service.schedulers.slurm.reading.state import SlurmState, StateSource
from oakum_service.schedulers.slurm.unread import UnreadLog
from oakum_worker.errors import reason_of

_PATH = "/v1/cluster/snapshots"
_POST_TIMEOUT_S = 30.0
_FIRST_BACKOFF_S = 1.0
_LONGEST_BACKOFF_S = 60.0
_log = logging.getLogger("oakum.collect")


class PostError(Exception):
    """The service did not accept a state; another attempt may succeed."""


class PostRefused(PostError):  # noqa: N818
    """The service rejects posted states or this token; another attempt cannot succeed."""


class StatePoster:
    """Posts states of Slurm to one service, over HTTP."""

    def __init__(
        self,
        url: str,
        token_file: Path,
        transport: httpx.BaseTransport | None = None,
        ca_file: Path | None = None,
    ) -> None:
        """`ca_file`: the authorities to trust, by default the system's. Raises `ConfigurationError` if it cannot
        be used."""
        self._url = url.rstrip("/") + _PATH
        self._token_file = token_file
        self._client = httpx.Client(
            timeout=_POST_TIMEOUT_S,
            transport=transport,
            verify=True if ca_file is None else client_context(ca_file),
        )

    def post(self, state: SlurmState, age_s: Callable[[], float]) -> None:
        """Post a state; `age_s` returns its age in seconds at the moment of sending. Raises `PostError` if the
        service cannot be reached or does not accept the state."""
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        body = encode_state(state)
        headers[AGE_HEADER] = f"{age_s():.6f}"
        try:
            response = self._client.post(self._url, content=body, headers=headers)
        except httpx.HTTPError as error:
            raise PostError(f"{self._url} cannot be reached: {error or type(error).__name__}") from error
        if response.is_success:
            return
        message = f"{self._url} answered with status {response.status_code}: {_detail(response)}"
        raise PostRefused(message) if response.is_client_error else PostError(message)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _token(self) -> str:
        try:
            token = self._token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise PostRefused(f"the token cannot be read: {reason_of(error)}") from error
        if not token or not token.isascii() or not token.isprintable():
            raise PostRefused(f"{self._token_file} holds no token: write one there, `oakum token create` makes it")
        return token


class Collector:
    """Reads Slurm's state and posts it, again and again: never more often than the reading pace allows, and less
    often while something fails."""

    def __init__(
        self,
        source: StateSource,
        post: Callable[[SlurmState, Callable[[], float]], None],
        settings: SlurmSettings,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._post = post
        self._pace = ReadPace(settings)
        self._sleep = sleep
        self._clock = clock
        self._backoff_s = 0.0
        self._failing = False
        self._last: tuple[SlurmState, float] | None = None
        """The newest state, and when its reading began."""
        self._unread = UnreadLog()
        self._goes_on, self._took_s = False, 0.0

    def run(self) -> None:
        """Read and post until interrupted. Raises `PostRefused` where the service rejects the states or the token;
        other errors are logged, and the next attempt follows."""
        self._goes_on = True
        while True:
            self._attempt()
            now = self._clock()
            self._sleep(max(self._pace.next_at(now, hinted=False) - now, self._backoff_s))

    def once(self) -> SlurmState:
        """Read and post one state. Raises `SchedulerError` or `PostError`. Returns the state."""
        began = self._clock()
        try:
            state = self._source.read()
        except SchedulerError:
            self._pace.failed(self._clock())
            raise
        self._pace.took(began, self._clock(), self._source.cycle_s())
        self._took_s = self._clock() - began
        self._unread.note_reading(state.unread)
        self._last = state, began
        self._post(self._with_next(state), lambda: self._clock() - began)
        return state

    def _with_next(self, state: SlurmState) -> SlurmState:
        """The state with when the next one is to come, so that the service knows soon if none does. A reading may
        take twice as long as the last one."""
        if not self._goes_on:
            return state
        now = self._clock()
        next_s = self._pace.next_at(now, hinted=False) - now + 2 * self._took_s
        return msgspec.structs.replace(state, next_s=next_s)

    def _attempt(self) -> None:
        try:
            state = self.once()
        except PostRefused:
            raise
        except (SchedulerError, PostError) as error:
            _log.warning("%s", error)
            self._failing = True
            if isinstance(error, PostError):
                self._back_off()
            else:
                self._tell(error)
            return
        self._backoff_s = 0.0
        if self._failing:
            self._failing = False
            _log.warning("posting again: %d nodes, %d jobs", len(state.nodes), len(state.jobs))

    def _tell(self, error: SchedulerError) -> None:
        """Send the last state once more, with why there is no newer one: the service need not wait until it is too
        old. An earlier version of the service finds a state that it knows."""
        if self._last is None:
            return
        state, began = self._last
        told = self._with_next(msgspec.structs.replace(state, failed=str(error)))
        try:
            self._post(told, lambda: self._clock() - began)
        except PostRefused:
            raise
        except PostError as failure:
            _log.warning("%s", failure)
            self._back_off()

    def _back_off(self) -> None:
        self._backoff_s = min(max(_FIRST_BACKOFF_S, 2 * self._backoff_s), _LONGEST_BACKOFF_S)


def _detail(response: httpx.Response) -> str:
    """The detail of a problem document, or the beginning of an answer of another kind."""
    try:
        document = response.json()
    except ValueError:
        document = None
    detail = document.get("detail") if isinstance(document, dict) else None
    return str(detail or response.text[:200].strip() or "nothing")
