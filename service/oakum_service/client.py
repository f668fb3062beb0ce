"""A Python client of the REST API, for the CLI, tests and scripts.

ClientError
├── NotConfigured         no address was given and none could be found
├── ServiceUnreachable    nothing answers at the address
├── ApiError              the service refused the call, with a problem document (RFC 9457)
└── UnexpectedAnswer      something answers that is not an Oakum service
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import ssl
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

from oakum_service.api.schemas.audit import AuditLog
from oakum_service.api.schemas.cluster import ClusterView, NodeList
from oakum_service.api.schemas.events import Event, EventList
from oakum_service.api.schemas.hold import HoldRequest, HoldView
from oakum_service.api.schemas.intervals import HoleList, Timeline
from oakum_service.api.schemas.ledger import Ledger
from oakum_service.api.schemas.notices import NoticeList, NoticeTest, NoticeTested
from oakum_service.api.schemas.plans import PlanList, PlanView, WhatIfRequest, WhatIfView
from oakum_service.api.schemas.problems import ProblemDetails
from oakum_service.api.schemas.quotas import QuotaLimits, QuotaList, QuotaView
from oakum_service.api.schemas.series import EvaluationList, EvaluationView, Series
from oakum_service.api.schemas.settings import ObjectiveList, SettingChange, SettingList, SettingView
from oakum_service.api.schemas.submissions import DryRunRequest, DryRunView
from oakum_service.api.schemas.trainers import (
    Explanation,
    LogText,
    PauseRequest,
    TrainerChange,
    TrainerList,
    TrainerView,
)
from oakum_service.errors import ConfigurationError
from oakum_service.states import TrainerState
from oakum_service.tls import client_context
from oakum_worker.spec import TrainerSpec

Document = TypeVar("Document", bound=BaseModel)

_READ_ATTEMPTS = 3
_LONG_PAGE = 5000
_FIRST_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_SILENCE_S = 60.0
"""An event stream without any data for this many seconds, keep-alives included, counts as broken."""


class ClientError(Exception):
    """A call to the service did not succeed; base of the client's errors."""


class NotConfigured(ClientError):  # noqa: N818 (reads as the state it describes)
    """No usable address of the service was given or found."""


class ServiceUnreachable(ClientError):  # noqa: N818
    """Nothing answers at the service's address."""


class UnexpectedAnswer(ClientError):  # noqa: N818
    """What answers at the address is not an Oakum service of this version."""


class ApiError(ClientError):
    """The service refused the call; `problem` is its problem document."""

    def __init__(self, problem: ProblemDetails, advice: str = "") -> None:
        self.problem = problem
        detail = problem.detail or problem.title
        lines = [detail, *(f"  {line}" for line in problem.errors if line not in detail)]
        super().__init__("\n".join([*lines, advice] if advice else lines))

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status


USUAL_SOCKET = Path("/run/oakum/oakum.sock")
"""Where clients look for the service's Unix socket if nothing else tells its address."""
_UNIX = "unix:"


@dataclass(frozen=True)
class Address:
    """The service's address, where it was found, the token to send (None: none), and whose certificates to
    trust."""

    url: str
    source: str
    token: str | None
    ca_file: Path | None = None
    """File with the authorities to trust; None: the system's."""

    @property
    def socket(self) -> str | None:
        """The path of the Unix socket that the address names; None for an address of the network."""
        return self.url.removeprefix(_UNIX) if self.url.startswith(_UNIX) else None

    @property
    def base_url(self) -> str:
        """What requests are made to; over a Unix socket any host will do."""
        return self.url if self.socket is None else "http://localhost"


def find_address(url: str | None = None, token: str | None = None) -> Address:
    """The service's address and token: from the arguments, else from `OAKUM_URL` and `OAKUM_TOKEN`, else from the
    file that `oakum serve` writes, else the socket that `OAKUM_SOCKET` names or is at its usual place. Raises
    `NotConfigured` where there is none, or it is no HTTP address.

    The token in the file is used only for the address in the file, so that no other service ever sees it.
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
    elif socket := _socket_here():
        found, source = socket, "found on this machine"
    else:
        raise NotConfigured(
            f"No service address: OAKUM_URL is not set and {path} does not exist. Start a service here with "
            "`make run` or `oakum serve`, or set OAKUM_URL and OAKUM_TOKEN to those of a running one."
        )
    if not found.startswith(("http://", "https://", _UNIX + "/")):
        raise NotConfigured(
            f"The service address {found!r} ({source}) does not begin with http://, https:// or unix:/."
        )
    found = found.rstrip("/")
    is_saved = saved is not None and saved["url"].rstrip("/") == found
    if token is None and saved and is_saved:
        token = saved.get("token")
    ca_file = os.environ.get("OAKUM_CA_FILE") or (saved.get("ca_file") if saved and is_saved else None)
    return Address(found, source, token, Path(ca_file) if ca_file else None)


def _socket_here() -> str | None:
    """The address of the service's Unix socket on this machine; None if there is none."""
    given = os.environ.get("OAKUM_SOCKET")
    path = Path(given) if given else USUAL_SOCKET
    return f"{_UNIX}{path.resolve()}" if path.is_socket() else None


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


def _over(address: Address) -> httpx.BaseTransport | None:
    return None if address.socket is None else httpx.HTTPTransport(uds=address.socket)


def _verification(address: Address) -> ssl.SSLContext | bool:
    """What httpx needs to check the service's certificate. Raises `NotConfigured` for a file of authorities that
    cannot be used."""
    if address.ca_file is None:
        return True
    try:
        return client_context(address.ca_file)
    except ConfigurationError as error:
        raise NotConfigured(str(error)) from error


def _beginning(trainer: str | None) -> str:
    return "" if trainer is None else f"?begin_from={quote(trainer, safe='')}"


class OakumClient:
    """One connection to the service. Every method makes one call and returns the API's document.

    `ca_file` has the authorities to trust, as PEM; by default those of `OAKUM_CA_FILE`, else the system's.
    `transport` replaces the network, for tests.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        timeout_s: float = 30.0,
        ca_file: Path | str | None = None,
    ) -> None:
        self.address = find_address(url, token)
        if ca_file is not None:
            self.address = dataclasses.replace(self.address, ca_file=Path(ca_file))
        self._http = httpx.Client(
            base_url=self.address.base_url,
            headers={"Authorization": f"Bearer {self.address.token}"} if self.address.token else {},
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            transport=transport or _over(self.address),
            verify=_verification(self.address),
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
        """Begin a hold: every fragment has to leave and none is launched. Returns the hold."""
        return self._write("PUT", "/v1/hold", HoldView, HoldRequest(reason=reason))

    def held(self) -> HoldView:
        """Ask whether there is a hold, since when and by whom. Returns the hold's document, which also tells
        that there is none."""
        return self._get("/v1/hold", HoldView)

    def resume(self) -> HoldView:
        """End the hold."""
        return self._write("DELETE", "/v1/hold", HoldView)

    def notices(self, trainer: str | None = None) -> NoticeList:
        """The newest notices, of one trainer or of all."""
        return self._get("/v1/notices", NoticeList, trainer=trainer)

    def try_recipient(self, recipient: NoticeTest) -> NoticeTested:
        """Send a test notice now."""
        return self._write("POST", "/v1/notices/test", NoticeTested, recipient)

    def trainers(self, state: TrainerState | None = None) -> TrainerList:
        """All trainers, or those in one state, from as many answers as that takes."""
        listing = self._get("/v1/trainers", TrainerList, state=state)
        trainers, earlier = listing.trainers, listing.next
        while earlier is not None:
            page = self._get("/v1/trainers", TrainerList, state=state, before=earlier, limit=_LONG_PAGE)
            trainers, earlier = page.trainers + trainers, page.next
        trainers.sort(key=lambda view: (view.submitted_at, view.id))
        return listing.model_copy(update={"trainers": trainers, "next": None})

    def submit(
        self, spec: TrainerSpec, idempotency_key: str | None = None, begin_from: str | None = None
    ) -> TrainerView:
        """Submit a trainer; returns its document. With `begin_from`, the name or id of a trainer that has ended,
        the new one begins from that one's newest checkpoint; with `NAME/STEP` or `NAME/best` from another of its
        checkpoints. Repeating the call with one `idempotency_key` submits once."""
        path = "/v1/trainers" + _beginning(begin_from)
        return self._write("POST", path, TrainerView, spec, idempotency_key)

    def check(self, spec: TrainerSpec, begin_from: str | None = None) -> None:
        """Ask whether the service would accept this trainer now; submits nothing. Raises the `ApiError` with which
        it would refuse."""
        answer = self._send("POST", "/v1/trainers/check" + _beginning(begin_from), spec)
        if not answer.is_success:
            raise self._refusal(answer)

    def dry_run(self, spec: TrainerSpec, total_samples: int | None) -> DryRunView:
        """The plan if the trainer were submitted now; submits nothing."""
        document = spec.model_dump(mode="json", exclude_unset=True)
        request = DryRunRequest(spec=document, total_samples=total_samples)
        return self._write("POST", "/v1/trainers/dry-run", DryRunView, request)

    def trainer(self, ref: str) -> TrainerView:
        """One trainer by id or name."""
        return self._get(_trainer_path(ref), TrainerView)

    def change(self, ref: str, change: TrainerChange) -> TrainerView:
        """Change a live trainer's bounds, weight or priority. Returns its document after the change."""
        return self._write("PATCH", _trainer_path(ref), TrainerView, change)

    def cancel(self, ref: str) -> TrainerView:
        """End a trainer. Raises `ApiError` (409) if it has ended already. Returns its document."""
        return self._write("POST", _trainer_path(ref, "cancel"), TrainerView)

    def pause(self, ref: str, reason: str = "") -> TrainerView:
        """Pause a trainer until `unpause`. Raises `ApiError` (409) if it has ended. Returns its document."""
        return self._write("PUT", _trainer_path(ref, "pause"), TrainerView, PauseRequest(reason=reason))

    def unpause(self, ref: str) -> TrainerView:
        """End a trainer's pause. Raises `ApiError` (409) if the trainer has ended. Returns its document."""
        return self._write("DELETE", _trainer_path(ref, "pause"), TrainerView)

    def retry(self, ref: str) -> TrainerView:
        """Let a failed or cancelled trainer go on from its newest durable checkpoint. Returns its document.

        Raises `ApiError` (409) if it is live, has finished or has diverged, and while fragments of it are
        leaving.
        """
        return self._write("POST", _trainer_path(ref, "retry"), TrainerView)

    def series(self, ref: str, limit: int = 600) -> Series:
        """A trainer's loss, throughput and size over time: the newest points, at most `limit` (5,000)."""
        return self._get(_trainer_path(ref, "series"), Series, limit=limit)

    def evaluations(self, ref: str) -> list[EvaluationView]:
        """What a trainer's evaluations gave, in order of steps: all that the service keeps."""
        found: list[EvaluationView] = []
        while True:
            after = found[-1].step if found else -1
            page = self._get(_trainer_path(ref, "evaluations"), EvaluationList, after_step=after, limit=5000)
            found += page.evaluations
            if len(page.evaluations) < 5000:
                return found

    def logs(self, ref: str, tail: int = 200) -> LogText:
        """The last lines that a trainer's fragments wrote."""
        return self._get(_trainer_path(ref, "logs"), LogText, tail=tail)

    def explain(self, ref: str) -> Explanation:
        """Why a trainer has the nodes it has."""
        return self._get(_trainer_path(ref, "explain"), Explanation)

    def nodes(self) -> NodeList:
        """Every node as of the last snapshot."""
        return self._get("/v1/nodes", NodeList)

    def holes(self, since_s: float = 3600) -> HoleList:
        """The holes of the last `since_s` seconds, from as many answers as that takes."""
        listing = self._get("/v1/holes", HoleList, since_s=since_s)
        holes, earlier = listing.holes, listing.next
        while earlier is not None:
            page = self._get("/v1/holes", HoleList, since_s=since_s, before=earlier, limit=_LONG_PAGE)
            holes, earlier = page.holes + holes, page.next
        return HoleList(holes=sorted(holes, key=lambda hole: hole.start_at))

    def timeline(self, since_s: float = 180) -> Timeline:
        """Nodes over time for the last `since_s` seconds."""
        return self._get("/v1/timeline", Timeline, since_s=since_s)

    def plans(self, limit: int = 20) -> PlanList:
        """The newest plans."""
        return self._get("/v1/plans", PlanList, limit=limit)

    def plan(self, number: int | None = None) -> PlanView:
        """One plan, by default the current one."""
        return self._get(f"/v1/plans/{'current' if number is None else number}", PlanView)

    def preview(self, request: WhatIfRequest) -> WhatIfView:
        """The plan that would be made under these circumstances; has no effect."""
        return self._write("POST", "/v1/plans/preview", WhatIfView, request)

    def recent_events(self, limit: int = 50) -> EventList:
        """The newest events."""
        return self._get("/v1/events/recent", EventList, limit=limit)

    def audit(
        self,
        *,
        actor: str | None = None,
        subject: str | None = None,
        action: str | None = None,
        limit: int = 200,
        before: int | None = None,
    ) -> AuditLog:
        """The newest acts that the audit log has for the caller, the newest first, those of one actor, subject or
        action where these are given; with `before`, only those with lower ids."""
        asked = {"actor": actor, "subject": subject, "action": action, "limit": limit, "before": before}
        return self._get("/v1/audit", AuditLog, **asked)

    def ledger(self, *, month: str | None = None, months: int = 1, user: str | None = None) -> Ledger:
        """What users' trainers had in `months` months, of which `month` (`2026-11`) is the last, by default the
        present one; with `user`, of this user only."""
        return self._get("/v1/ledger", Ledger, month=month, months=months, user=user)

    def quotas(self) -> QuotaList:
        """The quotas of users with live trainers or limits of their own; the caller's own for others than
        administrators."""
        return self._get("/v1/quotas", QuotaList)

    def quota(self, user: str) -> QuotaView:
        """One user's quota and what is used of it, storage included."""
        return self._get(_quota_path(user), QuotaView)

    def set_quota(self, user: str, limits: QuotaLimits) -> QuotaView:
        """Give a user limits in place of those set before. Returns the user's quota."""
        return self._write("PUT", _quota_path(user), QuotaView, limits)

    def clear_quota(self, user: str) -> None:
        """Take back the limits set for a user."""
        answer = self._send("DELETE", _quota_path(user), None)
        if not answer.is_success:
            raise self._refusal(answer)

    def settings(self) -> SettingList:
        """The settings that may be changed while the service runs."""
        return self._get("/v1/settings", SettingList)

    def change_setting(self, name: str, value: str | float | None) -> SettingView:
        """Change a setting from the next plan on. Returns it as it is then."""
        return self._write("PUT", _setting_path(name), SettingView, SettingChange(value=value))

    def reset_setting(self, name: str) -> SettingView:
        """Let the value hold again that the service was started with. Returns the setting as it is then."""
        return self._write("DELETE", _setting_path(name), SettingView)

    def objectives(self) -> ObjectiveList:
        """The objectives known by name, what expressions may use, and the objective that holds now."""
        return self._get("/v1/objectives", ObjectiveList)

    def events(self, after: int | None = None, *, give_up_s: float = 60.0) -> Iterator[Event]:
        """Events as they happen, beginning after the event `after`, without end.

        A broken stream is resumed where it broke; `ServiceUnreachable` is raised when this has failed for
        `give_up_s` seconds. At the start an unreachable service raises it at once.
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
        return self._read(self._send(method, path, body, idempotency_key), document)

    def _send(
        self, method: str, path: str, body: BaseModel | None, idempotency_key: str | None = None
    ) -> httpx.Response:
        content = None if body is None else body.model_dump_json(exclude_unset=True)
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        if content is not None:
            headers["Content-Type"] = "application/json"
        try:
            return self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

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
            problem = ProblemDetails.model_validate_json(answer.content)
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
        if "CERTIFICATE_VERIFY_FAILED" in cause:
            return ServiceUnreachable(
                f"What answers at {self._where()} has a certificate that is not trusted here: {cause}. If "
                "it is the service, name the authority that has signed the certificate, a PEM file, in "
                "OAKUM_CA_FILE."
            )
        return ServiceUnreachable(
            f"No service answers at {self._where()}: {cause}. Start one with `make run` or `oakum serve`, "
            "or set OAKUM_URL to where it runs."
        )

    def _where(self) -> str:
        return f"{self.address.url} ({self.address.source})"


def _setting_path(name: str) -> str:
    return f"/v1/settings/{quote(name, safe='')}"


def _quota_path(user: str) -> str:
    return f"/v1/quotas/{quote(user, safe='')}"


def _trainer_path(ref: str, part: str = "") -> str:
    path = f"/v1/trainers/{quote(ref, safe='')}"
    return f"{path}/{part}" if part else path
