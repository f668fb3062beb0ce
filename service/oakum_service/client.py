"""The REST API for Python callers: the CLI, tests and scripts.

ClientError
├── NotConfigured         no address was given and none could be found
├── ServiceUnreachable    nothing answers at the address
├── ApiError              the service refuses, with a problem document (RFC 9457)
└── UnexpectedAnswer      something answers, and it is not an Oakum service
"""

from __future__ import annotations

import itertools
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from oakum_service.api.schemas import (
    ClusterView,
    Event,
    EventList,
    Explanation,
    HoldRequest,
    HoldView,
    HoleList,
    LogText,
    NodeList,
    PlanList,
    PlanView,
    Problem,
    Series,
    Timeline,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.states import TrainerState
from oakum_worker.spec import TrainerSpec

Document = TypeVar("Document", bound=BaseModel)

_READ_ATTEMPTS = 3
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_SILENCE_S = 60.0
"""An event stream that says nothing for so long, keep-alives included, is taken for dead."""


class ClientError(Exception):
    """A call to the service did not succeed."""


class NotConfigured(ClientError):  # noqa: N818 (reads as the state it describes)
    """No address was given and none could be found."""


class ServiceUnreachable(ClientError):  # noqa: N818
    """Nothing answers at the address."""


class UnexpectedAnswer(ClientError):  # noqa: N818
    """What answers at the address is not an Oakum service of this version."""


class ApiError(ClientError):
    """The service refuses the call; `problem` is its own document."""

    def __init__(self, problem: Problem, advice: str = "") -> None:
        self.problem = problem
        lines = [problem.detail or problem.title, *(f"  {line}" for line in problem.errors)]
        super().__init__("\n".join([*lines, advice] if advice else lines))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


@dataclass(frozen=True)
class Address:
    """Where the service is, how that is known, and the token to show it."""

    url: str
    source: str
    token: str | None


def find_address(url: str | None = None, token: str | None = None) -> Address:
    """The address from the arguments, else `OAKUM_URL` and `OAKUM_TOKEN`, else the file that `serve` writes.

    The file's token goes to the file's own address only: another service must never be shown it.
    """
    path = Path(os.environ.get("OAKUM_DATA_DIR", ".oakum")) / "client.json"
    saved = _read_address_file(path)
    token = token or os.environ.get("OAKUM_TOKEN") or None
    if url:
        found, source = url, "given"
    elif env_url := os.environ.get("OAKUM_URL"):
        found, source = env_url, "from OAKUM_URL"
    elif saved:
        found, source = saved["url"], f"from {path}"
    else:
        raise NotConfigured(
            f"No service address: OAKUM_URL is not set and {path} does not exist. Start a service here with "
            "`make run` or `oakum serve`, or set OAKUM_URL and OAKUM_TOKEN to those of a running one."
        )
    if not found.startswith(("http://", "https://")):
        raise NotConfigured(f"The service address {found!r} ({source}) does not begin with http:// or https://.")
    found = found.rstrip("/")
    if token is None and saved and saved["url"].rstrip("/") == found:
        token = saved.get("token")
    return Address(found, source, token)


def _read_address_file(path: Path) -> dict[str, str] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NotConfigured(
            f"{path} cannot be read: {error}. Restart `oakum serve`, which writes it, "
            "or set OAKUM_URL and OAKUM_TOKEN and remove it."
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        raise NotConfigured(f'{path} has no "url". Restart `oakum serve`, which writes it.')
    return document


class OakumClient:
    """One connection to the service. Every method is one call and returns the API's document.

    `transport` replaces the network, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.address = find_address(url, token)
        self._http = httpx.Client(
            base_url=self.address.url,
            headers={"Authorization": f"Bearer {self.address.token}"} if self.address.token else {},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            transport=transport,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def cluster(self) -> ClusterView:
        """The cluster at a glance."""
        return self._get("/v1/cluster", ClusterView)

    def hold(self, reason: str = "") -> HoldView:
        """Send every fragment away and launch none."""
        return self._write("PUT", "/v1/hold", HoldView, HoldRequest(reason=reason))

    def resume(self) -> HoldView:
        """End the hold."""
        return self._write("DELETE", "/v1/hold", HoldView)

    def trainers(self, state: TrainerState | None = None) -> TrainerList:
        """All trainers, or those in one state."""
        return self._get("/v1/trainers", TrainerList, state=state)

    def submit(self, spec: TrainerSpec, idempotency_key: str | None = None) -> TrainerView:
        """Hand in a trainer. Repeating the call with the same key submits it once."""
        return self._write("POST", "/v1/trainers", TrainerView, spec, idempotency_key)

    def trainer(self, ref: str) -> TrainerView:
        """One trainer by id or name."""
        return self._get(_trainer_path(ref), TrainerView)

    def change(self, ref: str, change: TrainerChange) -> TrainerView:
        """Change a live trainer's sizes or weight."""
        return self._write("PATCH", _trainer_path(ref), TrainerView, change)

    def cancel(self, ref: str) -> TrainerView:
        """End a trainer. Raises `ApiError` (409) for one that has ended."""
        return self._write("POST", _trainer_path(ref, "cancel"), TrainerView)

    def series(self, ref: str) -> Series:
        """A trainer's loss, throughput and size over time."""
        return self._get(_trainer_path(ref, "series"), Series)

    def logs(self, ref: str, tail: int = 200) -> LogText:
        """The last lines that a trainer's fragments wrote."""
        return self._get(_trainer_path(ref, "logs"), LogText, tail=tail)

    def explain(self, ref: str) -> Explanation:
        """Why a trainer has the nodes it has."""
        return self._get(_trainer_path(ref, "explain"), Explanation)

    def nodes(self) -> NodeList:
        """Every node as the last snapshot saw it."""
        return self._get("/v1/nodes", NodeList)

    def holes(self, since_s: float = 3600) -> HoleList:
        """The holes of the last `since_s` seconds."""
        return self._get("/v1/holes", HoleList, since_s=since_s)

    def timeline(self, since_s: float = 180) -> Timeline:
        """Nodes x time for the last `since_s` seconds."""
        return self._get("/v1/timeline", Timeline, since_s=since_s)

    def plans(self, limit: int = 20) -> PlanList:
        """The newest plans."""
        return self._get("/v1/plans", PlanList, limit=limit)

    def plan(self, number: int | None = None) -> PlanView:
        """One plan, by default the current one."""
        return self._get(f"/v1/plans/{'current' if number is None else number}", PlanView)

    def recent_events(self, limit: int = 50) -> EventList:
        """The newest events."""
        return self._get("/v1/events/recent", EventList, limit=limit)

    def events(self, after: int | None = None, *, give_up_s: float = 60.0) -> Iterator[Event]:
        """Events as they happen, from the one after `after` on, without end.

        A broken stream is taken up again where it broke; `ServiceUnreachable` says that this has failed for
        `give_up_s` seconds. A service that cannot be reached at the start raises it at once.
        """
        reached_at: float | None = None
        backoff_s = _FIRST_BACKOFF_S
        while True:
            try:
                with self._event_stream(after) as answer:
                    try:
                        for event in self._events_in(answer):
                            after, backoff_s = event.id, _FIRST_BACKOFF_S
                            yield event
                    finally:
                        reached_at = time.monotonic()
            except httpx.TransportError as error:
                if reached_at is None or time.monotonic() - reached_at > give_up_s:
                    raise self._unreachable(error) from error
            time.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, _LONGEST_BACKOFF_S)

    @contextmanager
    def _event_stream(self, after: int | None) -> Iterator[httpx.Response]:
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        timeout = httpx.Timeout(10.0, read=_SILENCE_S)
        with self._http.stream("GET", "/v1/events", headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise self._refusal(answer)
            yield answer

    def _events_in(self, answer: httpx.Response) -> Iterator[Event]:
        data: list[str] = []
        for line in answer.iter_lines():
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                yield self._parse("\n".join(data).encode(), Event)
                data = []

    def _get(self, path: str, document: type[Document], **query: Any) -> Document:
        params = {name: value for name, value in query.items() if value is not None}
        for attempt in itertools.count(1):
            try:
                answer = self._http.get(path, params=params)
                break
            except httpx.TransportError as error:
                if attempt == _READ_ATTEMPTS or isinstance(error, httpx.TimeoutException):
                    raise self._unreachable(error) from error
                time.sleep(_FIRST_BACKOFF_S * 2**attempt)
        return self._read(answer, document)

    def _write(
        self,
        method: str,
        path: str,
        document: type[Document],
        body: BaseModel | None = None,
        idempotency_key: str | None = None,
    ) -> Document:
        content = None if body is None else body.model_dump_json(exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        return self._read(answer, document)

    def _read(self, answer: httpx.Response, document: type[Document]) -> Document:
        if not answer.is_success:
            raise self._refusal(answer)
        return self._parse(answer.content, document)

    def _parse(self, content: bytes, document: type[Document]) -> Document:
        try:
            return document.model_validate_json(content)
        except ValidationError as error:
            raise UnexpectedAnswer(
                f"{self._where()} answered something that is not a {document.__name__} document. "
                "Check that it is an Oakum service and that client and service have the same version."
            ) from error

    def _refusal(self, answer: httpx.Response) -> ClientError:
        try:
            problem = Problem.model_validate_json(answer.content)
        except ValidationError:
            return UnexpectedAnswer(
                f"{self._where()} answered {answer.status_code} {answer.reason_phrase} and says no more. "
                "Check that it is the address of an Oakum service."
            )
        return ApiError(problem, self._advice(answer.status_code))

    def _advice(self, status: int) -> str:
        if status == 401 and self.address.token is None:
            return "Set OAKUM_TOKEN to the token that `oakum serve` printed."
        if status == 401:
            return "The token in use is not valid there; set OAKUM_TOKEN to one that is (`oakum token`)."
        return ""

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        if isinstance(error, httpx.ReadTimeout):
            return ServiceUnreachable(
                f"{self._where()} accepted the call and did not answer in time. Look at the service's log."
            )
        cause = str(error) or type(error).__name__
        return ServiceUnreachable(
            f"No service answers at {self._where()}: {cause}. Start one with `make run` or `oakum serve`, "
            "or set OAKUM_URL to where it runs."
        )

    def _where(self) -> str:
        return f"{self.address.url} ({self.address.source})"


def _trainer_path(ref: str, part: str = "") -> str:
    path = f"/v1/trainers/{quote(ref, safe='')}"
    return f"{path}/{part}" if part else path
